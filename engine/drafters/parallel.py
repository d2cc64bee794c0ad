"""The DFlash drafter behind the engine's contract."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.base import Settings
from engine.drafters.dflash import DFlash
from engine.drafters.dflash_files import fitting_drafter
from engine.drafters.dflash_packed import PackedDFlash, PackedSession
from engine.models.llama import Llama
from space.errors import EngineError


class DFlashDrafter:
    """Drafts a block in one pass from the target's tapped hidden states."""

    def __init__(self, model: PackedDFlash, candidates: int) -> None:
        """Takes the drafter, and how many tokens a position its Markov head rescores."""
        self._session = PackedSession(model)
        self._taps = model.config.target_layer_ids
        self._longest = model.config.draft_length
        self._candidates = candidates
        self._anchor = 0

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers that the drafter was trained on."""
        return self._taps

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Injects the taps of committed positions; the newest token becomes the anchor."""
        if taps is None:
            raise EngineError("a DFlash drafter needs the target's taps with every committed token")
        self._session.extend(taps)
        self._anchor = tokens[-1]

    def propose(self, limit: int) -> list[int]:
        """Returns at most `limit` tokens, and at most the block that the drafter was trained for."""
        return self._session.propose(self._anchor, min(limit, self._longest), self._candidates)


class DFlashCheckpoint:
    """A loaded DFlash checkpoint, laid out for the target that it drafts for."""

    def __init__(self, model: DFlash, target: Llama) -> None:
        """Takes a drafter that fits `target`."""
        self._packed = PackedDFlash(model, target)

    @property
    def kind(self) -> str:
        """`dflash`."""
        return "dflash"

    def start(self, settings: Settings) -> DFlashDrafter:
        """A fresh drafter for one request."""
        self._packed.use(settings.linear_path, settings.draft_vocabulary)
        return DFlashDrafter(self._packed, settings.markov_candidates)


def load_dflash(folder: Path, _: Mapping[str, Any], target: Llama) -> DFlashCheckpoint:
    """Loads a DFlash checkpoint for `target`."""
    return DFlashCheckpoint(fitting_drafter(folder, target.config), target)
