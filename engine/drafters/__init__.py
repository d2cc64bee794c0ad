"""Who proposes tokens: one file a drafter, and the registry."""

from collections.abc import Callable

from engine.base import Drafter, Settings
from engine.drafters.ngram import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from space.errors import EngineError, nearest

_MAKERS: dict[str, Callable[[Settings], Drafter]] = {
    "ngram": lambda s: NgramDrafter(longest=s.ngram_max, shortest=s.ngram_min),
    "suffix": lambda s: SuffixDrafter(
        s.suffix_depth, s.suffix_min_match, s.suffix_factor, s.min_probability, s.draft_length
    ),
}


def make_drafter(settings: Settings) -> Drafter | None:
    """Makes a fresh drafter for one request; None for AR. EngineError for an unknown name."""
    if settings.drafter == "none":
        return None
    if settings.drafter not in _MAKERS:
        raise EngineError(
            f"drafter {settings.drafter!r}{nearest(settings.drafter, _MAKERS)} Known: none, {', '.join(_MAKERS)}"
        )
    return _MAKERS[settings.drafter](settings)
