"""Who proposes tokens: one file a drafter, and the registry."""

from collections.abc import Callable

from engine.base import Drafter, Settings
from engine.drafters.checkpoint import DraftModel
from engine.drafters.mixed import suffix_first
from engine.drafters.ngram import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from space.errors import EngineError, nearest

_TEXT: dict[str, Callable[[Settings], Drafter]] = {
    "ngram": lambda s: NgramDrafter(longest=s.ngram_max, shortest=s.ngram_min),
    "suffix": lambda s: SuffixDrafter.from_settings(s, s.suffix_min_match),
}


def make_drafter(settings: Settings, checkpoint: DraftModel | None = None) -> Drafter | None:
    """Makes a fresh drafter for one request; None for AR.

    Raises:
        EngineError: the name is unknown, or it is a format of which no checkpoint is loaded.
    """
    name = settings.drafter
    if name == "none":
        return None
    if name in _TEXT:
        return _TEXT[name](settings)
    if checkpoint is not None and name == checkpoint.kind:
        return suffix_first(settings, checkpoint.start(settings))
    known = ("none", *_TEXT, *((checkpoint.kind,) if checkpoint is not None else ()))
    raise EngineError(
        f"drafter {name!r} is not there{nearest(name, known)} Known: {', '.join(known)}; "
        "a neural drafter needs drafter.source in the deployment"
    )
