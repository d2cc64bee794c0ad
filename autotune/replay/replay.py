"""Any policy on a recording: the steps that the engine would take, exactly.

Policies without state beyond the committed text are looked up: plain chains, fixed and best-first trees with any
budget, width, depth and floor, a second draft pass behind a chain, n-grams, suffixes, and suffixes in front of any of
these. Their tables are made when they are first asked for, and then serve every genome. Whatever else there is (an
estimator that learns, the suffix automaton's opinion of a tree, text merged into a tree, trees of a suffix automaton)
is simulated step by step with the engine's own code.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy
from numpy.typing import NDArray

from autotune.replay.orders import NEVER, ORDERS, Cut, Lattice, cut
from autotune.replay.places import LONGEST, Counts, Drafted, Places
from autotune.replay.recording import Recording
from autotune.replay.text import DEEPEST, Continuations, Found, continuations, longest_ngram, ngrams
from engine.base import Settings
from engine.record import Steps, simulate
from engine.verify.builders import MAX_NODES, ceiling

_TOGETHER = 32
"""Genomes that are walked at once: what they jump along stays in the processor's cache."""
_STEPS = 8
"""Steps between two looks at who has arrived."""
_ORDERS_KEPT = 24

_Table = TypeVar("_Table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a policy comes to on all recorded answers together: steps, nodes, and tokens after the first ones."""

    steps: int
    nodes: int
    tokens: int

    @property
    def tau(self) -> float:
        """Tokens a step, the target's own included; the first token of an answer comes from the prefill."""
        return self.tokens / max(1, self.steps)


class Replay:
    """Replays policies on one recording."""

    def __init__(self, recording: Recording) -> None:
        """Lays the recording out; tables come later, as policies need them."""
        self.recording = recording
        self._traces = recording.traces
        self._places = Places(recording.traces)
        self._next = numpy.arange(1, _TOGETHER * self._places.count + 1).reshape(_TOGETHER, -1)
        self._tables: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    def steps(self, settings: Settings) -> tuple[Steps, ...]:
        """The step log of each recorded answer. InputError for settings that the recording says nothing about."""
        self.recording.check(settings)
        drafted = self._drafted(settings)
        if drafted is None:
            return tuple(simulate(trace, settings, self.recording.kind) for trace in self._traces)
        visited = self._visited([drafted])[0]
        nodes, accepted = drafted
        logs = []
        for start, end in zip(self._places.starts, self._places.ends, strict=True):
            at = start + visited[start:end].nonzero()[0]
            logs.append(Steps(tuple(nodes[at].tolist()), tuple(accepted[at].tolist())))
        return tuple(logs)

    def is_fast(self, settings: Settings) -> bool:
        """True for a policy that is looked up, once its tables are there."""
        return self._drafted(settings) is not None

    def evaluate(self, policies: Sequence[Settings]) -> list[Figures]:
        """The figures of many policies, in their order. InputError as `steps`."""
        figures: list[Figures | None] = [None] * len(policies)
        batch: list[tuple[int, Drafted]] = []
        for index, settings in enumerate(policies):
            self.recording.check(settings)
            drafted = self._drafted(settings)
            if drafted is None:
                figures[index] = self._added(self.steps(settings))
            else:
                batch.append((index, drafted))
            if len(batch) == _TOGETHER or (batch and index == len(policies) - 1):
                for (where, _), found in zip(batch, self._walked([d for _, d in batch]), strict=True):
                    figures[where] = found
                batch = []
        return cast(list[Figures], figures)

    def _added(self, logs: Sequence[Steps]) -> Figures:
        steps = sum(len(log.nodes) for log in logs)
        return Figures(
            steps=steps,
            nodes=sum(sum(log.nodes) for log in logs),
            tokens=steps + sum(sum(log.accepted) for log in logs),
        )

    def _walked(self, batch: Sequence[Drafted]) -> list[Figures]:
        visited = self._visited(batch)
        tokens = int(self._places.count - len(self._places.ends))  # one place for each token but the first
        return [
            Figures(steps=int(numpy.count_nonzero(row)), nodes=int((nodes * row).sum()), tokens=tokens)
            for row, (nodes, _) in zip(visited, batch, strict=True)
        ]

    def _visited(self, batch: Sequence[Drafted]) -> NDArray[numpy.bool_]:
        """[policies, places] at which places steps begin: every request of every policy is walked at once."""
        places, count = self._places, self._places.count
        offsets = numpy.arange(len(batch))[:, None] * count
        ends = (offsets + places.ends).ravel()
        following = numpy.empty(len(batch) * count, numpy.intp)
        for index, (_, accepted) in enumerate(batch):
            numpy.add(self._next[index], accepted, out=following[index * count : (index + 1) * count])
        following[ends] = ends  # an end leads to itself
        visited = numpy.zeros(len(batch) * count, bool)
        at = (offsets + places.starts).ravel()
        while len(at):
            for _ in range(_STEPS):
                visited[at] = True
                at = following.take(at, mode="clip")
            at = at[following.take(at, mode="clip") != at]
        visited[ends] = False
        return visited.reshape(len(batch), count)

    def _drafted(self, settings: Settings) -> Drafted | None:
        """What a step would draft and have accepted at every place; None where the places do not decide that."""
        if settings.drafter == "none" or settings.draft_length < 1:
            zeros = numpy.zeros(self._places.count, numpy.int16)
            return zeros, zeros
        if settings.draft_length > LONGEST or settings.suffix_depth > DEEPEST or settings.tree_nodes > MAX_NODES:
            return None
        if settings.drafter in ("ngram", "suffix"):
            return self._copied(settings) if settings.tree == "chain" and settings.level_one == "none" else None
        neural = self._neural(settings)
        if neural is None or not settings.suffix_first:
            return neural
        drafted = self._suffix_drafts(settings, settings.suffix_first)
        silent = drafted[0] == 0
        for own, other in zip(drafted, neural, strict=True):
            numpy.copyto(own, other, where=silent)
        return drafted

    def _copied(self, settings: Settings) -> Drafted:
        if settings.drafter == "suffix":
            return self._suffix_drafts(settings, settings.suffix_min_match)
        shortest, longest = settings.ngram_min, settings.ngram_max
        found = self._table(("ngrams", shortest, longest), lambda: self._ngrams(shortest, longest))
        return self._places.chains(found.lengths, found.matched, settings.draft_length)

    def _ngrams(self, shortest: int, longest: int) -> Found:
        def of(length: int) -> Found:
            return self._table(("ngram", length), lambda: ngrams(self._traces, self._places, length))

        return longest_ngram([of(length) for length in range(shortest, longest + 1)])

    def _suffix_drafts(self, settings: Settings, shortest: int) -> Drafted:
        depth, floor, factor = settings.suffix_depth, settings.min_probability, settings.suffix_factor
        every: Continuations = self._table(("suffixes",), lambda: continuations(self._traces, self._places))
        found = self._table(("suffix", depth, floor), lambda: every.at(depth, floor))
        allowed = self._table(("allowed", depth, factor), lambda: every.allowed(depth, factor))
        lengths = numpy.minimum(found.lengths, allowed)
        lengths *= every.match[depth - 1] >= shortest
        return self._places.chains(lengths, found.matched, settings.draft_length)

    def _neural(self, settings: Settings) -> Drafted | None:
        if settings.tree == "chain" and settings.level_one in ("none", "second_pass"):
            make = self._chains if settings.level_one == "none" else self._long_chains
            found: Found = self._table((settings.level_one,), make)
            return self._places.chains(found.lengths, found.matched, settings.draft_length)
        if settings.tree not in ORDERS or settings.level_one != "none" or settings.tree_branch != "none":
            return None
        lattice: Lattice = self._table(("lattice",), lambda: Lattice(self._places, [t.first for t in self._traces]))
        depth = min(settings.draft_length, lattice.positions)
        if settings.tree == "fixed" and settings.tree_width * depth >= NEVER:
            return None
        nodes, matched = self._cut(settings, lattice, depth).within(settings.tree_nodes)
        return nodes.astype(numpy.int16), numpy.minimum(matched.astype(numpy.int16), self._places.rest)

    def _cut(self, settings: Settings, lattice: Lattice, depth: int) -> Cut:
        shape = settings.tree, settings.tree_width, depth

        def make() -> Cut:
            order = self._table(("order", *shape), lambda: ORDERS[shape[0]](lattice, *shape[1:]), _ORDERS_KEPT)
            return cut(order, ceiling(settings.tree_floor))

        return self._table(("cut", *shape, settings.tree_floor), make)

    def _chains(self) -> Found:
        return self._found(self._places.spread([trace.chains for trace in self._traces], -1))

    def _found(self, chains: NDArray[Any]) -> Found:
        lengths: Counts = (chains >= 0).sum(1, dtype=numpy.int16)
        return Found(lengths, self._places.matches(chains))

    def _long_chains(self) -> Found:
        """The best path of the first lattice, and behind it that of the second."""
        places = self._places
        whole = numpy.full((places.count, LONGEST), -1, numpy.int32)
        begin = numpy.zeros(places.count, numpy.int16)
        for which in ("first", "second"):
            lattices = [getattr(trace, which) for trace in self._traces]
            lattice = Lattice(places, lattices)
            ids = places.spread([part.ids for part in lattices], -1)
            path = numpy.take_along_axis(ids, lattice.best_path()[:, :, None], 2)[:, :, 0]
            for position in range(min(lattice.positions, LONGEST)):
                there = (position < lattice.lengths) & (begin + position < LONGEST)
                whole[there, (begin + position)[there]] = path[there, position]
            begin = begin + lattice.lengths
        return self._found(whole)

    def _table(self, key: tuple[object, ...], make: Callable[[], _Table], keep: int | None = None) -> _Table:
        """A table by its key, made when it is not there; of the large ones only the `keep` latest used are kept."""
        if key in self._tables:
            self._tables.move_to_end(key)
        else:
            self._tables[key] = make()
            alike = [other for other in self._tables if other[0] == key[0]]
            for other in alike[: len(alike) - keep] if keep is not None else ():
                del self._tables[other]
        return cast(_Table, self._tables[key])
