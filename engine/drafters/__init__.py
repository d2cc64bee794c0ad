"""Who proposes tokens: one file a drafter, and the registry."""

from collections.abc import Callable

from engine.base import Drafter, Settings
from engine.drafters.dflash import DFlash
from engine.drafters.ngram import NgramDrafter
from engine.drafters.parallel import DFlashDrafter, SuffixFirst
from engine.drafters.suffix import SuffixDrafter
from engine.models.llama import Llama
from space.errors import EngineError, nearest


def _suffix(settings: Settings, min_match: int) -> SuffixDrafter:
    return SuffixDrafter(
        settings.suffix_depth, min_match, settings.suffix_factor, settings.min_probability, settings.draft_length
    )


def _dflash(settings: Settings, target: Llama, dflash: DFlash | None) -> Drafter:
    if dflash is None:
        raise EngineError("drafter 'dflash' needs a checkpoint: set drafter.source in the deployment")
    head = target.head.weight[: settings.draft_vocabulary or None]
    neural = DFlashDrafter(dflash, target.embedding, head, settings.markov_candidates)
    return SuffixFirst(_suffix(settings, settings.suffix_first), neural) if settings.suffix_first else neural


_MAKERS: dict[str, Callable[[Settings, Llama, DFlash | None], Drafter]] = {
    "ngram": lambda s, target, dflash: NgramDrafter(longest=s.ngram_max, shortest=s.ngram_min),
    "suffix": lambda s, target, dflash: _suffix(s, s.suffix_min_match),
    "dflash": _dflash,
}


def make_drafter(settings: Settings, target: Llama, dflash: DFlash | None = None) -> Drafter | None:
    """Makes a fresh drafter for one request on `target`; None for AR.

    Raises:
        EngineError: the name is unknown, or it needs a checkpoint that is not there.
    """
    if settings.drafter == "none":
        return None
    if settings.drafter not in _MAKERS:
        raise EngineError(
            f"drafter {settings.drafter!r}{nearest(settings.drafter, _MAKERS)} Known: none, {', '.join(_MAKERS)}"
        )
    return _MAKERS[settings.drafter](settings, target, dflash)
