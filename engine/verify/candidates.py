"""What may come next and how likely it is: the graph of scored continuations that draft trees are built from."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy
from numpy.typing import NDArray

from engine.base import Lattice

WIDTH = 16
"""Candidates a position that a parallel drafter is asked for."""

Child: TypeAlias = tuple[float, int, int]
"""Cost (minus the log-probability after what stands before), token, and the state behind it; -1: nothing follows."""


class Candidates(Protocol):
    """States of a text with their scored continuations. Text from the root to a state may be reached in many ways."""

    @property
    def root(self) -> int:
        """The state after the committed text."""

    def after(self, state: int) -> Sequence[Child]:
        """What may follow a state, cheapest first."""


class LatticeCandidates:
    """A parallel drafter's lattice. State j * rows + a: candidate a of position j - 1 stands before position j.

    Log-probabilities are rounded to float16, as a recording keeps them: replay then builds the very same trees.
    """

    def __init__(self, ids: NDArray[numpy.int64], edges: NDArray[numpy.float16]) -> None:
        """Takes ids [K, k] and edges [K, rows, k], rows being k, or 1 for a drafter without pair scores."""
        self.positions, self._rows, _ = edges.shape
        order, costs = cheapest_first(edges)
        tokens = numpy.take_along_axis(ids[:, None], order, -1)
        behind = order if self._rows > 1 else numpy.zeros_like(order)
        behind = behind + self._rows * numpy.arange(1, self.positions + 1)[:, None, None]
        behind[-1:] = -1
        self._costs, self._tokens, self._behind = (
            array.reshape(-1, array.shape[-1]).tolist() for array in (costs, tokens, behind)
        )
        self.size = len(self._costs)

    @classmethod
    def of(cls, lattice: Lattice) -> "LatticeCandidates":
        """Reads a drafter's tensors once."""
        return cls(lattice.ids.cpu().numpy(), lattice.edges.half().cpu().numpy())

    @property
    def root(self) -> int:
        """Row 0 of position 0."""
        return 0

    def after(self, state: int) -> Sequence[Child]:
        """What may follow a state, cheapest first."""
        if state >= self.size:
            return []  # a lattice without positions has no root either
        return list(zip(self._costs[state], self._tokens[state], self._behind[state], strict=True))


def cheapest_first(
    edges: NDArray[numpy.float16],
) -> tuple[NDArray[numpy.int64], NDArray[numpy.float64]]:
    """Order and costs of candidates along the last axis; of equals the lower index comes first."""
    costs = -edges.astype(numpy.float64)
    order = numpy.argsort(costs, axis=-1, kind="stable")
    return order, numpy.take_along_axis(costs, order, -1)


class Rooted:
    """Other candidates, seen from another of their states."""

    def __init__(self, candidates: Candidates, root: int) -> None:
        """Takes the candidates and the state that is the root now."""
        self._candidates = candidates
        self._root = root

    @property
    def root(self) -> int:
        """The given state."""
        return self._root

    def after(self, state: int) -> Sequence[Child]:
        """What may follow a state, cheapest first."""
        return self._candidates.after(state)


class Prolonged:
    """A lattice, and behind its best path what else may follow: states of the best path are told from the others.

    States from `size` on are those of the best path, states from twice `size` on are the tail's.
    """

    def __init__(self, lattice: LatticeCandidates, tail: Candidates) -> None:
        """Takes the lattice and candidates whose root is the end of its best path."""
        self._lattice = lattice
        self._tail = tail
        self._size = lattice.size

    @property
    def root(self) -> int:
        """The lattice's root, as the beginning of the best path."""
        return self._lattice.root + self._size

    def after(self, state: int) -> Sequence[Child]:
        """What may follow a state, cheapest first."""
        size = self._size
        if state < size:
            return self._lattice.after(state)
        if state >= 2 * size:
            return [(c, t, s + 2 * size if s >= 0 else -1) for c, t, s in self._tail.after(state - 2 * size)]
        (cost, token, behind), *others = self._lattice.after(state - size)
        return [(cost, token, behind + size if behind >= 0 else self._tail.root + 2 * size), *others]


def best_path(candidates: Candidates, depth: int) -> tuple[list[int], list[Child]]:
    """Follows the cheapest child at most `depth` times; returns the states passed through and the children taken."""
    states: list[int] = []
    taken: list[Child] = []
    state = candidates.root
    while len(taken) < depth and state >= 0 and (row := candidates.after(state)):
        states.append(state)
        taken.append(row[0])
        state = row[0][2]
    return states, taken
