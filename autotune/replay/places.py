"""All places of all recorded answers in a row, where one array operation serves every request at once.

Each answer of n tokens has n - 1 places at which a step may begin (p + 1 tokens are committed at place p), and behind
them one that is its end.
"""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy
from numpy.typing import NDArray

from engine.record import Trace

LONGEST = 32
"""Tokens of the answer that are compared with a draft."""

_Scalar = TypeVar("_Scalar", bound=numpy.generic)
Counts: TypeAlias = NDArray[numpy.int16]
Drafted: TypeAlias = tuple[Counts, Counts]
"""Nodes and accepted tokens of the step that begins at each place, [places]; -1 accepted at an answer's end."""


class Places:
    """The answers of a recording.

    starts, ends: [requests] the first place and the end of each answer.
    room: [places] the deepest draft that the request's limit allows there.
    rest: [places] most tokens that a step can accept there: all but the last token of the answer.
    truth: [places, LONGEST] the answer's own next tokens, padded with -2.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        """Lays the answers out."""
        lengths = numpy.array([len(trace.tokens) for trace in traces])
        self.ends = lengths.cumsum() - 1
        self.starts = self.ends - lengths + 1
        self.count = int(lengths.sum())
        self.room = numpy.zeros(self.count, numpy.int16)
        self.rest = numpy.zeros(self.count, numpy.int16)
        self.truth = numpy.full((self.count, LONGEST), -2, numpy.int32)
        for trace, start, length in zip(traces, self.starts, lengths, strict=True):
            own, done = slice(start, start + length), numpy.arange(1, length + 1)
            self.room[own] = trace.request.max_tokens - done - 1
            self.rest[own] = length - done - 1
            for ahead in range(min(LONGEST, length - 1)):
                self.truth[start : start + length - 1 - ahead, ahead] = trace.tokens[1 + ahead :]
        self.room[self.ends] = 0

    def spread(self, parts: Sequence[NDArray[_Scalar]], fill: float) -> NDArray[_Scalar]:
        """Arrays of one entry a place, a request each, as one array [places, ...]; `fill` stands at the ends.

        Where the arrays differ in other axes, they are padded with `fill`.
        """
        shape = numpy.max([part.shape[1:] for part in parts], axis=0)
        whole = numpy.full((self.count, *shape), fill, parts[0].dtype)
        for part, start in zip(parts, self.starts, strict=True):
            whole[(slice(start, start + len(part)), *(slice(0, size) for size in part.shape[1:]))] = part
        return whole

    def matches(self, drafts: NDArray[numpy.int32], at: NDArray[numpy.int64] | None = None) -> Counts:
        """[n] how many tokens of drafts [n, K], padded with -1, the answer follows at places `at`; None means all."""
        truth = self.truth if at is None else self.truth[at]
        equal = drafts[:, :LONGEST] == truth[:, : drafts.shape[1]]
        return leading(equal)

    def chains(self, lengths: Counts, matched: Counts, limit: int) -> Drafted:
        """Steps that draft chains of these lengths, of which the answer follows `matched` tokens."""
        nodes = numpy.minimum(lengths, numpy.minimum(self.room, limit))
        return nodes, numpy.minimum(numpy.minimum(matched, nodes), self.rest)


def leading(holds: NDArray[numpy.bool_]) -> Counts:
    """[places] how many of [places, K] conditions hold before the first that does not."""
    counts: Counts = numpy.logical_and.accumulate(holds, axis=1).sum(1, dtype=numpy.int16)
    return counts
