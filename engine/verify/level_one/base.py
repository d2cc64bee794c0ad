"""The contract of level one, and the level one that has no opinion.

Level one sees a draft before the target does. It may take nodes away or add some, and it may be wrong: level two, the
exact target, decides alone about every token that is committed, so that no level one can change the text.
"""

from collections.abc import Sequence

from engine.base import ParallelDrafter
from engine.verify.candidates import Candidates, LatticeCandidates
from engine.verify.tree import Tree


class LevelOne:
    """Has no opinion; the others override what they need. One instance serves one request."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes newly committed tokens."""

    def prolong(self, lattice: LatticeCandidates, drafter: ParallelDrafter, limit: int) -> Candidates:
        """Adds what may follow the lattice, where the step may draft `limit` tokens deep."""
        return lattice

    def prune(self, tree: Tree, candidates: Candidates) -> Tree:
        """Takes away what is not worth verifying."""
        return tree

    def learn(self, tree: Tree, candidates: Candidates, committed: Sequence[int]) -> None:
        """Sees what became of the tree that it pruned: the tokens that the target committed."""
