"""The builders of engine/verify/builders.py for all places at once: in which order nodes enter a tree.

A budget cuts that order short, so one order serves every budget. Ties are broken as the builders break them, and
costs are added in the same order in the same precision: the trees are the same, node by node. Log-probabilities must
not be positive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from autotune.replay.places import Counts, Places
from engine.record import Lattices
from engine.verify.builders import MAX_NODES
from engine.verify.candidates import cheapest_first

NEVER = 255
"""As a number of nodes: the true token is not among them."""


class Lattice:
    """The lattices of all places, sorted.

    costs, order: [places, K * rows, k] costs (float16) and indices of the candidates, cheapest first.
    true: [places, K] index of the answer's own token among the candidates, or -1.
    lengths: [places] positions.
    """

    def __init__(self, places: Places, lattices: Sequence[Lattices]) -> None:
        """Sorts once."""
        self.places = places
        costs, orders, found = [], [], []
        for part in lattices:
            order, cost = cheapest_first(part.edges)
            costs.append(cost.astype(numpy.float16))
            orders.append(order.astype(numpy.uint8))
            found.append(part.ids)
        self.rows = max(part.edges.shape[2] for part in lattices)
        shapes = [part.edges.shape for part in lattices]
        flat = [(n, positions * rows, k) for n, positions, rows, k in shapes]
        self.costs = places.spread([c.reshape(shape) for c, shape in zip(costs, flat, strict=True)], numpy.inf)
        self.order = places.spread([o.reshape(shape) for o, shape in zip(orders, flat, strict=True)], 0)
        ids = places.spread(found, -1)
        same = ids == places.truth[:, : ids.shape[1], None]
        self.true = numpy.where(same.any(-1), same.argmax(-1), -1).astype(numpy.int16)
        self.positions = ids.shape[1]
        self.lengths: Counts = places.spread([part.lengths for part in lattices], 0).astype(numpy.int16)

    def best_path(self) -> NDArray[numpy.int32]:
        """[places, K] candidates of the cheapest child of the cheapest child, as indices."""
        at = numpy.arange(self.places.count)
        path, before = [], numpy.zeros(self.places.count, numpy.int64)
        for position in range(self.positions):
            before = self.order[at, position * self.rows + (before if self.rows > 1 else 0), 0].astype(numpy.int64)
            path.append(before)
        return numpy.stack(path, 1).astype(numpy.int32)


@dataclass(frozen=True, slots=True)
class Order:
    """Nodes in the order in which a builder takes them.

    costs: [places, nodes] of their paths; inf where there is no node.
    true: [positions, places] where in that order the answer's own path has its nodes; NEVER where it has none.
    """

    costs: NDArray[numpy.float64]
    true: NDArray[numpy.uint8]


@dataclass(frozen=True, slots=True)
class Cut:
    """An order without the nodes whose path costs too much.

    needed: [positions, places] nodes that a tree must have for the answer's own path to be in it so far, or NEVER.
    total: [places] nodes there are.
    """

    needed: NDArray[numpy.uint8]
    total: NDArray[numpy.uint8]

    def within(self, budget: int) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]:
        """Nodes and matched tokens of each place's tree of at most `budget` nodes."""
        nodes = numpy.minimum(self.total, budget).astype(numpy.uint8)
        matched = numpy.zeros_like(nodes)
        for needed in self.needed:
            matched += needed <= nodes
        return nodes, matched


def cut(order: Order, ceiling: float) -> Cut:
    """Leaves out what costs more than the ceiling. Whatever stands behind such a node costs more as well."""
    kept = (order.costs <= ceiling) & (order.costs < numpy.inf)
    counts = numpy.zeros((len(kept), kept.shape[1] + 1), numpy.uint8)
    numpy.cumsum(kept, axis=1, dtype=numpy.uint8, out=counts[:, 1:])
    at = numpy.arange(len(kept))
    needed = numpy.full_like(order.true, NEVER)
    for depth, place in enumerate(order.true):
        there = numpy.minimum(place, kept.shape[1] - 1)
        inside = (place != NEVER) & kept[at, there]
        needed[depth, inside] = counts[at, there + 1][inside]
    return Cut(needed, counts[:, -1].copy())


def best_first_order(lattice: Lattice, width: int, depth: int) -> Order:
    """The order of `best_first` for trees of at most `depth`, as far as the largest budget goes."""
    places = lattice.places
    limit = numpy.minimum(numpy.minimum(lattice.lengths, places.room), depth)
    rows, k = lattice.rows, lattice.order.shape[-1]
    at = numpy.arange(places.count)
    slots = 2 * MAX_NODES + 1
    cost = numpy.full((places.count, slots), numpy.inf)
    above = numpy.zeros((places.count, slots))
    row = numpy.zeros((places.count, slots), numpy.int16)
    rank = numpy.zeros((places.count, slots), numpy.int16)
    follows = numpy.zeros((places.count, slots), bool)  # its parent is on the answer's own path
    cost[:, 0] = numpy.where(limit > 0, lattice.costs[:, 0, 0], numpy.inf)
    follows[:, 0] = True
    costs = numpy.full((places.count, MAX_NODES), numpy.inf)
    true = numpy.full((lattice.positions, places.count), NEVER, numpy.uint8)
    for node in range(MAX_NODES):
        free = 2 * node + 1
        slot = cost[:, :free].argmin(1)  # of equals the one that was met first
        here, own_row, own_rank = cost[at, slot], row[at, slot], rank[at, slot]
        cost[at, slot] = numpy.inf
        costs[:, node] = here
        index = lattice.order[at, own_row, own_rank].astype(numpy.int16)
        position = own_row // rows
        own, is_node = follows[at, slot], here < numpy.inf
        on_path = own & (index == lattice.true[at, position]) & is_node
        true[position[on_path], at[on_path]] = node
        beside = own_rank + 1
        more = is_node & (beside < min(width, k))
        base, beside = above[at, slot], numpy.minimum(beside, k - 1)
        cost[:, free] = numpy.where(more, base + lattice.costs[at, own_row, beside], numpy.inf)
        above[:, free], row[:, free], rank[:, free], follows[:, free] = base, own_row, beside, own
        deeper = is_node & (position + 1 < limit)
        below = numpy.where(deeper, (position + 1) * rows + (index if rows > 1 else 0), 0)
        cost[:, free + 1] = numpy.where(deeper, here + lattice.costs[at, below, 0], numpy.inf)
        above[:, free + 1], row[:, free + 1], follows[:, free + 1] = here, below, on_path
    return Order(costs, true)


def fixed_order(lattice: Lattice, width: int, depth: int) -> Order:
    """The order of `fixed` for trees of at most `depth`: level by level, the cheapest of each first."""
    places = lattice.places
    limit = numpy.minimum(numpy.minimum(lattice.lengths, places.room), depth)
    rows, k = lattice.rows, lattice.order.shape[-1]
    at, taken = numpy.arange(places.count)[:, None], min(width, k)
    costs: list[NDArray[numpy.float64]] = []
    true = numpy.full((lattice.positions, places.count), NEVER, numpy.uint8)
    beam = numpy.zeros((places.count, 1))
    before = numpy.zeros((places.count, 1), numpy.int64)
    follows = numpy.ones((places.count, 1), bool)
    for position in range(min(lattice.positions, depth)):
        row = position * rows + (before if rows > 1 and position else 0 * before)
        options = (beam[:, :, None] + lattice.costs[at, row, :taken]).reshape(places.count, -1)
        options[position >= limit] = numpy.inf
        chosen = numpy.argsort(options, axis=1, kind="stable")[:, :width]
        beam = options[at, chosen]
        index = lattice.order[at, row, :taken].reshape(places.count, -1)[at, chosen].astype(numpy.int64)
        follows = follows[at, chosen // taken] & (index == lattice.true[:, position, None]) & (beam < numpy.inf)
        found = follows.any(1)
        true[position, found] = sum(level.shape[1] for level in costs) + follows[found].argmax(1)
        costs.append(beam)
        before = index
    return Order(numpy.concatenate(costs, 1) if costs else numpy.zeros((places.count, 0)), true)


ORDERS = {"best_first": best_first_order, "fixed": fixed_order}
