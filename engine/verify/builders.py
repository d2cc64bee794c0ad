"""Tree builders: which of the scored continuations are verified. One function a shape, and the registry."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from engine.base import Settings
from engine.verify.candidates import Candidates, best_path
from engine.verify.tree import Origin, Tree

MAX_NODES = 64
"""Most nodes of a tree: the cache keeps room for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The limits of a tree: nodes, children a node, depth, and the greatest cost (minus log-probability) of a path."""

    budget: int
    width: int
    depth: int
    ceiling: float = 1e300

    @classmethod
    def of(cls, settings: Settings, depth: int) -> "Shape":
        """A genome's shape for a step that may draft `depth` tokens deep."""
        return cls(
            budget=settings.tree_nodes,
            width=settings.tree_width,
            depth=depth,
            ceiling=ceiling(settings.tree_floor),
        )


def ceiling(floor: float) -> float:
    """The cost of a path with the probability `floor`; for 0 more than any path that is possible at all."""
    return -math.log(floor) if floor > 0 else 1e300


def chain(candidates: Candidates, shape: Shape) -> Tree:
    """The path of the likeliest continuations; only the depth limits it."""
    states, taken = best_path(candidates, shape.depth)
    return Tree([token for _, token, _ in taken], range(-1, len(taken) - 1), [(state, 0) for state in states])


def fixed(candidates: Candidates, shape: Shape) -> Tree:
    """The same number of nodes at every depth: the `width` likeliest paths so far (a beam), while the budget lasts."""
    tokens: list[int] = []
    parents: list[int] = []
    origins: list[Origin] = []
    beam = [(0.0, candidates.root, -1)]
    for _ in range(shape.depth):
        options = [
            (cost + edge, token, behind, parent, (state, rank))
            for cost, state, parent in beam
            if state >= 0
            for rank, (edge, token, behind) in enumerate(candidates.after(state)[: shape.width])
        ]
        options.sort(key=lambda option: option[0])
        beam = []
        for cost, token, behind, parent, origin in options[: shape.width]:
            if cost > shape.ceiling or len(tokens) == shape.budget:
                break
            beam.append((cost, behind, len(tokens)))
            tokens.append(token)
            parents.append(parent)
            origins.append(origin)
    return Tree(tokens, parents, origins)


def best_first(candidates: Candidates, shape: Shape) -> Tree:
    """The likeliest paths: the nodes of greatest path probability, whose parents are always among them.

    A heap of next siblings and first children, as in DDTree (arXiv 2604.12989); there the score of a node is the
    product of its position's marginals, here of the edges along its path, where the drafter scores pairs. Of equally
    likely nodes the one that was met first comes first.
    """
    tokens: list[int] = []
    parents: list[int] = []
    origins: list[Origin] = []
    met = 1
    row = candidates.after(candidates.root)
    # Cost, order of meeting, rank among its siblings, the siblings, their state, parent node, depth, parent's cost.
    heap = [(row[0][0], 0, 0, row, candidates.root, -1, 1, 0.0)] if row and shape.depth > 0 else []
    while heap and len(tokens) < shape.budget:
        cost, _, rank, row, state, parent, depth, above = heappop(heap)
        if cost > shape.ceiling:
            break
        _, token, behind = row[rank]
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        origins.append((state, rank))
        rank += 1
        if rank < shape.width and rank < len(row):
            heappush(heap, (above + row[rank][0], met, rank, row, state, parent, depth, above))
            met += 1
        if behind >= 0 and depth < shape.depth and (below := candidates.after(behind)):
            heappush(heap, (cost + below[0][0], met, 0, below, behind, node, depth + 1, cost))
            met += 1
    return Tree(tokens, parents, origins)


BUILDERS: Mapping[str, Callable[[Candidates, Shape], Tree]] = {
    "chain": chain,
    "fixed": fixed,
    "best_first": best_first,
}
