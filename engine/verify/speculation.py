"""The draft of a step: who drafts, in which shape, and what level one thinks of it before the target sees it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from torch import Tensor

from engine.base import Drafter, ParallelDrafter, Settings
from engine.drafters.mixed import SuffixFirst
from engine.drafters.ngram import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.verify.builders import BUILDERS, MAX_NODES, Shape, ceiling
from engine.verify.candidates import WIDTH, Candidates, LatticeCandidates
from engine.verify.level_one import LEVEL_ONE
from engine.verify.tree import EMPTY, Tree
from space.errors import EngineError, nearest

_BRANCHES: Mapping[str, Callable[[Settings], Drafter | None]] = {
    "none": lambda _: None,
    "ngram": lambda s: NgramDrafter(longest=s.ngram_max, shortest=s.ngram_min),
    "suffix": lambda s: SuffixDrafter.from_settings(s, s.suffix_min_match),
}


class Speculates(Protocol):
    """What the step loop asks for drafts; see Speculation."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The drafter's."""

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Takes newly committed tokens (see Drafter.extend)."""

    def propose(self, limit: int) -> Tree:
        """Drafts a tree at most `limit` deep; may be empty."""


class Speculation:
    """Drafts the trees of one request. It sees committed tokens only, so a draft never depends on what it admits."""

    def __init__(self, settings: Settings, drafter: Drafter | None) -> None:
        """Takes a genome's settings and a fresh drafter of its kind; None drafts nothing.

        Raises:
            EngineError: the settings name a builder, branch or level one that is not there, or ask for a tree of a
                drafter that scores no candidates.
        """
        self._settings = settings
        self._drafter = drafter
        self._text_first = drafter.suffix if isinstance(drafter, SuffixFirst) else None
        self._builder = _choose(BUILDERS, "tree", settings.tree)
        self._branch = _choose(_BRANCHES, "tree_branch", settings.tree_branch)(settings)
        self._level_one = _choose(LEVEL_ONE, "level_one", settings.level_one)(settings)
        if not 1 <= settings.tree_nodes <= MAX_NODES:
            raise EngineError(f"tree_nodes {settings.tree_nodes}: allowed is a whole number from 1 to {MAX_NODES}")
        # A plain chain is the drafter's own: the fast way, and all there is for one that scores no candidates.
        self._plain = settings.tree == "chain" and settings.level_one == "none"
        if drafter is not None and not self._plain and not _scores(drafter):
            raise EngineError(
                f"tree {settings.tree!r} with level_one {settings.level_one!r} needs a drafter that scores candidates; "
                f"{settings.drafter!r} drafts one chain: use tree 'chain' and level_one 'none' with it"
            )
        self._last: tuple[Tree, Candidates] | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        """The drafter's."""
        return self._drafter.taps if self._drafter is not None else ()

    @property
    def envelope(self) -> int:
        """Most nodes that a step of these settings ever has: what a captured graph must hold, beside the root."""
        if self._drafter is None:
            return 0
        length = self._settings.draft_length
        if self._settings.tree == "chain":
            return length
        # A text draft in front of the tree is a chain of its own.
        return self._settings.tree_nodes if self._text_first is None else max(length, self._settings.tree_nodes)

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Takes newly committed tokens (see Drafter.extend); level one learns what became of the last tree."""
        if self._drafter is None:
            return
        if self._last is not None:
            self._level_one.learn(*self._last, tokens)
            self._last = None
        self._drafter.extend(tokens, taps)
        self._level_one.extend(tokens)
        if self._branch is not None:
            self._branch.extend(tokens)

    def propose(self, limit: int) -> Tree:
        """Drafts a tree at most `limit` deep; may be empty."""
        if self._drafter is None or limit <= 0:
            return EMPTY
        if self._plain:
            return Tree.chain(self._drafter.propose(limit))
        if self._text_first is not None and (text := self._text_first.propose(limit)):
            return Tree.chain(text)
        scored = self._candidates(limit)
        if scored is None:
            return EMPTY
        candidates, shape = scored
        tree = self._builder(candidates, shape)
        if self._branch is not None and self._settings.tree != "chain":
            branch = self._branch.propose(min(limit, shape.budget // 2))  # the text's own, at most half of the nodes
            tree = Tree.chain(branch).merged(tree, shape.budget) if branch else tree
        tree = self._level_one.prune(tree, candidates)
        self._last = tree, candidates
        return tree

    def _candidates(self, limit: int) -> tuple[Candidates, Shape] | None:
        """What the tree is built from, and its limits; None where nothing can be said."""
        drafter = self._drafter.neural if isinstance(self._drafter, SuffixFirst) else self._drafter
        shape = Shape.of(self._settings, limit)
        if isinstance(drafter, SuffixDrafter):
            depth = drafter.depth(limit)
            floor = max(self._settings.tree_floor, drafter.floor)
            return (drafter, replace(shape, depth=depth, ceiling=ceiling(floor))) if depth else None
        parallel = cast(ParallelDrafter, drafter)  # __init__ made sure
        lattice = LatticeCandidates.of(parallel.lattice(limit, WIDTH))
        return self._level_one.prolong(lattice, parallel, limit), shape


def _scores(drafter: Drafter) -> bool:
    drafter = drafter.neural if isinstance(drafter, SuffixFirst) else drafter
    return isinstance(drafter, SuffixDrafter) or hasattr(drafter, "lattice")


_Kind = TypeVar("_Kind")


def _choose(registry: Mapping[str, _Kind], key: str, name: str) -> _Kind:
    if name not in registry:
        raise EngineError(f"{key} {name!r} is not there{nearest(name, registry)} Known: {', '.join(registry)}")
    return registry[name]
