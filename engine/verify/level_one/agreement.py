"""Level one by suffix: what the text has said before, after the same words, as a second opinion on a draft."""

from collections.abc import Sequence

from engine.base import ParallelDrafter, Settings
from engine.drafters.suffix import SuffixDrafter
from engine.verify.candidates import Candidates, LatticeCandidates, Prolonged, Rooted, best_path
from engine.verify.level_one.base import LevelOne
from engine.verify.tree import Tree


class _Agreement(LevelOne):
    """Follows the text in a suffix automaton; speaks only where a long enough suffix of it occurred before."""

    def __init__(self, settings: Settings) -> None:
        """`agreement_match` is the shortest suffix that makes it speak."""
        self._suffix = SuffixDrafter.from_settings(settings, settings.agreement_match)

    def extend(self, tokens: Sequence[int]) -> None:
        """Both the automaton and its counts grow with committed tokens only."""
        self._suffix.extend(tokens)


class SuffixPruning(_Agreement):
    """Takes away nodes that the text contradicts: after their path it always went on in other ways."""

    def prune(self, tree: Tree, candidates: Candidates) -> Tree:
        """Keeps a node when the automaton knows its token there, or knows nothing about the path before it."""
        root = self._suffix.root
        if root < 0:
            return tree
        states: list[int] = []
        keep: list[bool] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            known = root if parent < 0 else states[parent]
            ways = {next_token: state for _, next_token, state in self._suffix.after(known)} if known >= 0 else {}
            keep.append(not ways or token in ways)
            states.append(ways.get(token, -1))
        return tree.kept(keep)


class SuffixProlonging(_Agreement):
    """Where the text has said the block's whole best path before, goes on as the text did then."""

    def prolong(self, lattice: LatticeCandidates, drafter: ParallelDrafter, limit: int) -> Candidates:
        """The lattice with the automaton's continuations behind its best path, where automaton and drafter agree."""
        state = self._suffix.root
        if state < 0 or not lattice.positions or limit <= lattice.positions:
            return lattice
        _, taken = best_path(lattice, lattice.positions)
        for _, token, _ in taken:
            state = next((behind for _, known, behind in self._suffix.after(state) if known == token), -1)
            if state < 0:
                return lattice
        return Prolonged(lattice, Rooted(self._suffix, state))
