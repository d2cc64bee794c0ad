"""A recorded answer: the target's tokens and what a drafter says at each of them; and any policy's steps on it.

A parallel drafter's output depends on the committed text only, and greedy decoding has one text whatever is drafted.
So the steps of a policy follow from a recording, by the very code that drafts in the step loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.base import Drafter, Lattice, ParallelDrafter, Request, Settings
from engine.drafters import make_drafter
from engine.drafters.checkpoint import DraftModel
from engine.loop import Decoder
from engine.verify.candidates import WIDTH, LatticeCandidates, best_path
from engine.verify.speculation import Speculation
from engine.verify.tree import EMPTY, Tree
from space.errors import EngineError

_LONGEST = 1 << 10
"""More positions than any block has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattices:
    """Lattices at n places, padded to the longest: `lengths` [n] says how many positions each has.

    ids: [n, K, k] int32. edges: [n, K, rows, k] float16, see engine.base.Lattice.
    """

    lengths: NDArray[numpy.uint8]
    ids: NDArray[numpy.int32]
    edges: NDArray[numpy.float16]

    @classmethod
    def stacked(cls, lattices: Sequence[Lattice]) -> "Lattices":
        """Pads and stacks lattices of one drafter."""
        lengths = [len(lattice.ids) for lattice in lattices]
        widest = max(lattices, key=lambda lattice: lattice.edges.numel(), default=None)
        shape = widest.edges.shape if widest is not None else (0, 1, 0)
        ids = numpy.full((len(lattices), shape[0], shape[2]), -1, numpy.int32)
        edges = numpy.full((len(lattices), *shape), -numpy.inf, numpy.float16)
        for index, lattice in enumerate(lattices):
            ids[index, : lengths[index]] = lattice.ids.cpu().numpy()
            edges[index, : lengths[index]] = lattice.edges.half().cpu().numpy()
        return cls(lengths=numpy.array(lengths, numpy.uint8), ids=ids, edges=edges)

    def at(self, place: int, limit: int) -> Lattice:
        """One lattice, at most `limit` positions of it."""
        length = min(int(self.lengths[place]), limit)
        ids = torch.from_numpy(self.ids[place, :length]).long()
        return Lattice(ids=ids, edges=torch.from_numpy(self.edges[place, :length]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One request, its greedy answer, and what the drafter says at each place of it.

    At place p, p + 1 tokens of the answer are committed; an answer of n tokens has n - 1 places.

    tokens: the answer.
    chains: [n - 1, K] int32, what `propose` drafts, padded with -1; K = 0 without a neural drafter.
    first: the drafter's lattices. second: those behind the best path of the first (level one `second_pass`).
    """

    request: Request
    tokens: tuple[int, ...]
    chains: NDArray[numpy.int32]
    first: Lattices
    second: Lattices


@dataclass(frozen=True, slots=True)
class Steps:
    """The step log of one answer, as far as a policy decides it: nodes and accepted tokens of each step."""

    nodes: tuple[int, ...]
    accepted: tuple[int, ...]


class _Recorder:
    """Drafts nothing; writes down what the drafter would have drafted at every step of AR."""

    def __init__(self, drafter: Drafter | None) -> None:
        self._drafter = drafter
        self.chains: list[list[int]] = []
        self.first: list[Lattice] = []
        self.second: list[Lattice] = []

    @property
    def taps(self) -> tuple[int, ...]:
        return self._drafter.taps if self._drafter is not None else ()

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        if self._drafter is not None:
            self._drafter.extend(tokens, taps)

    def propose(self, limit: int) -> Tree:
        if self._drafter is None:
            self.chains.append([])
            return EMPTY
        self.chains.append(self._drafter.propose(_LONGEST))
        if hasattr(self._drafter, "lattice"):
            drafter = cast(ParallelDrafter, self._drafter)
            first = drafter.lattice(_LONGEST, WIDTH)
            candidates = LatticeCandidates.of(first)
            path = [token for _, token, _ in best_path(candidates, candidates.positions)[1]]
            self.first.append(first)
            self.second.append(drafter.lattice(_LONGEST, WIDTH, path) if path else first)
        return EMPTY


def record(decoder: Decoder, request: Request, settings: Settings, checkpoint: DraftModel | None = None) -> Trace:
    """Decodes a request by AR and records what the checkpoint's drafter, started with `settings`, says beside it."""
    recorder = _Recorder(checkpoint.start(settings) if checkpoint is not None else None)
    found = decoder.decode(request, settings, recorder)
    chains = numpy.full((len(recorder.chains), max(map(len, recorder.chains), default=0)), -1, numpy.int32)
    for row, chain in zip(chains, recorder.chains, strict=True):
        row[: len(chain)] = chain
    first, second = Lattices.stacked(recorder.first), Lattices.stacked(recorder.second)
    return Trace(request=request, tokens=found.tokens, chains=chains, first=first, second=second)


class RecordedDrafter:
    """Says at each place what was recorded there."""

    def __init__(self, trace: Trace) -> None:
        """Takes the trace of the request that it drafts for."""
        self._trace = trace
        self._place = -1 - len(trace.request.prompt)

    @property
    def taps(self) -> tuple[int, ...]:
        """None: what the taps led to is recorded."""
        return ()

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Moves on."""
        self._place += len(tokens)

    def propose(self, limit: int) -> list[int]:
        """The recorded chain."""
        return [int(token) for token in self._trace.chains[self._place][:limit] if token >= 0]

    def lattice(self, limit: int, width: int, path: Sequence[int] = ()) -> Lattice:
        """The recorded lattice; behind a path the second one. EngineError for what was not recorded."""
        if not len(self._trace.first.lengths):
            raise EngineError("the recorded drafter scores no candidates; it drafts plain chains only")
        if width != WIDTH:
            raise EngineError(f"a lattice of width {width} was not recorded; only {WIDTH} is")
        return (self._trace.second if path else self._trace.first).at(self._place, limit)


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """Stands in for the drafter's checkpoint, whatever its kind is."""

    trace: Trace
    kind: str

    def start(self, settings: Settings) -> RecordedDrafter:
        """A drafter for the recorded request."""
        return RecordedDrafter(self.trace)


def simulate(trace: Trace, settings: Settings, kind: str) -> Steps:
    """The steps that a policy would take on a recorded request; `kind` is the recorded drafter's kind."""
    speculation = Speculation(settings, make_drafter(settings, RecordedModel(trace, kind)))
    answer, limit = trace.tokens, trace.request.max_tokens
    speculation.extend((*trace.request.prompt, answer[0]))
    done, nodes, accepted = 1, list[int](), list[int]()
    while done < len(answer):
        tree = speculation.propose(min(settings.draft_length, limit - done - 1))
        committed = min(_followed(tree, answer[done:]) + 1, len(answer) - done)
        nodes.append(len(tree))
        accepted.append(committed - 1)
        speculation.extend(answer[done : done + committed])
        done += committed
    return Steps(tuple(nodes), tuple(accepted))


def _followed(tree: Tree, answer: Sequence[int]) -> int:
    """How many tokens of the answer the tree holds as a path from its root."""
    children = {
        (parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    at = -1
    for count, token in enumerate(answer):
        node = children.get((at, token))
        if node is None:
            return count
        at = node
    return len(answer)
