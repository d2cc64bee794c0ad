"""A draft tree: tokens that one target pass verifies together, each seeing its own ancestors only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from space.errors import EngineError

Origin = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tree:
    """Drafted nodes, parents before children. A chain is a tree in which each node follows the one before it.

    tokens: [n] drafted token ids.
    parents: [n] each node's parent; -1 is the last committed token.
    origins: [n] the state and the rank that each node had among the scored candidates that it was built from (see
        engine/verify/candidates.py), or empty for a draft without scores; a node of (-1, -1) has none.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    origins: Sequence[Origin] = ()

    def __post_init__(self) -> None:
        """Refuses a node that stands before its parent: its ancestors would be wrong, and so would be the answer."""
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise EngineError(f"node {node} of a draft tree has parent {parent}; it must be from -1 to {node - 1}")

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "Tree":
        """The tree of width one."""
        return cls(tokens, range(-1, len(tokens) - 1))

    def __len__(self) -> int:
        """Its number of nodes."""
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """True when each node follows the one before it: its rows then are a chain's, and need no mask."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def depths(self) -> list[int]:
        """[n] each node's distance from the last committed token; its children have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def positions(self, start: int) -> Tensor:
        """[n + 1] int64 positions of the pass's rows: the last committed token at `start`, then the nodes."""
        return torch.tensor([0, *self.depths]) + start

    def visible(self) -> Tensor:
        """[n + 1, n + 1] bool: which rows of the pass (the last committed token, then the nodes) a row sees."""
        seen = numpy.eye(len(self.tokens) + 1, dtype=bool)
        for row, parent in enumerate(self.parents, 1):
            seen[row] |= seen[parent + 1]
        return torch.from_numpy(seen)

    def kept(self, keep: Sequence[bool]) -> "Tree":
        """The nodes that are kept; a node whose parent is not kept goes with it."""
        place = [-1] * (len(keep) + 1)  # the last entry is the root's: parent -1 finds it
        tokens: list[int] = []
        parents: list[int] = []
        origins: list[Origin] = []
        for node, parent in enumerate(self.parents):
            if keep[node] and (parent < 0 or place[parent] >= 0):
                place[node] = len(tokens)
                tokens.append(self.tokens[node])
                parents.append(place[parent])
                if self.origins:
                    origins.append(self.origins[node])
        return Tree(tokens, parents, origins)

    def merged(self, other: "Tree", budget: int) -> "Tree":
        """This tree, and as many nodes of the other, in its order, as the budget still holds.

        Paths that both have are merged from the root on. A node that both have keeps the other's origin.
        """
        tokens, parents = list(self.tokens), list(self.parents)
        origins = [*self.origins] if self.origins else [(-1, -1)] * len(tokens)
        known = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
        place: list[int | None] = []
        for index, (token, parent) in enumerate(zip(other.tokens, other.parents, strict=True)):
            above = parent if parent < 0 else place[parent]
            node = None if above is None else known.get((above, token))
            origin = other.origins[index] if other.origins else (-1, -1)
            if node is not None:
                origins[node] = origin
            elif above is not None and len(tokens) < budget:
                node = known[above, token] = len(tokens)
                tokens.append(token)
                parents.append(above)
                origins.append(origin)
            place.append(node)
        return Tree(tokens, parents, origins)


EMPTY = Tree((), ())


def greedy_walk(tree: Tree, choices: Sequence[int]) -> list[int]:
    """Follows the target's own choices from the root through the tree; returns the accepted nodes, root's child first.

    Args:
        tree: [n] nodes.
        choices: [n + 1] the target's argmax after the last committed token and after each node.
    """
    children = {
        (parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    path: list[int] = []
    at = -1
    while (node := children.get((at, choices[at + 1]))) is not None:
        path.append(node)
        at = node
    return path
