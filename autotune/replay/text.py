"""Drafts that are copied from the text, at all places: what each n-gram length and each suffix finds there.

What they draft depends on the committed text only, so it is looked up once a place, by the drafters themselves, and
every threshold is applied afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy
from numpy.typing import NDArray

from autotune.replay.places import LONGEST, Counts, Places, leading
from engine.base import Drafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.record import Trace

_Kind = TypeVar("_Kind", bound=Drafter)
_Scalar = TypeVar("_Scalar", bound=numpy.generic)


def _walk(traces: Sequence[Trace], places: Places, make: Callable[[], _Kind]) -> Iterator[tuple[int, _Kind]]:
    """Each place with a drafter that has seen what is committed there."""
    for trace, start in zip(traces, places.starts, strict=True):
        drafter = make()
        drafter.extend((*trace.request.prompt, trace.tokens[0]))
        for index, token in enumerate(trace.tokens[1:]):
            yield int(start) + index, drafter
            drafter.extend((token,))


@dataclass(frozen=True, slots=True)
class Found:
    """Chains at each place: [places] their lengths and how far the answer follows them."""

    lengths: Counts
    matched: Counts


def ngrams(traces: Sequence[Trace], places: Places, length: int) -> Found:
    """What n-grams of one length find."""
    chains = numpy.full((places.count, LONGEST), -1, numpy.int32)
    for place, drafter in _walk(traces, places, lambda: NgramDrafter(longest=length, shortest=length)):
        draft = drafter.propose(LONGEST)
        chains[place, : len(draft)] = draft
    return Found((chains >= 0).sum(1, dtype=numpy.int16), places.matches(chains))


def longest_ngram(found: Sequence[Found]) -> Found:
    """The longest of several lengths that finds anything; `found` is in ascending order of length."""
    first, *longer = found
    lengths, matched = first.lengths, first.matched
    for better in longer:
        there = better.lengths > 0
        lengths = numpy.where(there, better.lengths, lengths)
        matched = numpy.where(there, better.matched, matched)
    return Found(lengths, matched)


DEEPEST = 64
"""The longest suffix that replay looks up."""


@dataclass(frozen=True, slots=True)
class Continuations:
    """The likeliest continuations that any suffix finds, each once: a place finds the same at most depths.

    probability: [rows, LONGEST] of each continuation so far, -1 behind its end. matched: [rows] how far the answer
    follows it. row: [depths, places] which one is found at a depth (1 for the first). match: [depths, places] length
    of the suffix that was matched.
    """

    probability: NDArray[numpy.float64]
    matched: Counts
    row: NDArray[numpy.int32]
    match: Counts

    def at(self, depth: int, floor: float) -> Found:
        """What is found at each place with contexts of at most `depth` tokens, before its probability is too low."""
        row = self.row[depth - 1]
        return Found(leading(self.probability >= floor)[row], self.matched[row])

    def allowed(self, depth: int, factor: float) -> Counts:
        """[places] the longest draft for the suffix that was matched, at `factor` tokens for each of its own."""
        allowed: Counts = (factor * self.match[depth - 1]).astype(numpy.int16)
        return numpy.maximum(allowed, 1, out=allowed)


def continuations(traces: Sequence[Trace], places: Places) -> Continuations:
    """What the suffix automaton finds at every place, for every depth up to DEEPEST.

    An automaton that counts suffixes for the greatest depth has the counts of all smaller ones.
    """
    row = numpy.zeros((DEEPEST, places.count), numpy.int32)
    match = numpy.zeros((DEEPEST, places.count), numpy.int16)
    chains: list[list[int]] = [[]]
    chances: list[list[float]] = [[]]
    where = [0]
    for place, drafter in _walk(traces, places, lambda: SuffixDrafter(DEEPEST, 1, 1.0, 0.0, LONGEST)):
        rows: dict[int, int] = {}
        depth = DEEPEST
        while depth > 0:
            state, length = drafter.match(depth)
            if state not in rows:
                rows[state] = len(chains)
                found = list(drafter.continuation(state, LONGEST))
                chains.append([token for token, _ in found])
                chances.append([chance for _, chance in found])
                where.append(place)
            lowest = max(1, length)  # from the matched length up to this depth nothing else is found
            row[lowest - 1 : depth, place], match[lowest - 1 : depth, place] = rows[state], length
            depth = lowest - 1
    matched = places.matches(_padded(chains, -1, numpy.int32), numpy.array(where))
    return Continuations(_padded(chances, -1.0, numpy.float64), matched, row, match)


def _padded(rows: Sequence[Sequence[float]], fill: float, kind: type[_Scalar]) -> NDArray[_Scalar]:
    whole = numpy.full((len(rows), LONGEST), fill, kind)
    for line, row in zip(whole, rows, strict=True):
        line[: len(row)] = row
    return whole
