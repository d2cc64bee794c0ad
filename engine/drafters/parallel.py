"""The DFlash drafter behind the engine's contract."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.base import Lattice, Settings
from engine.drafters.dflash import DFlash, DFlashSession
from engine.drafters.dflash_files import fitting_drafter
from engine.models.llama import Llama
from space.errors import EngineError


class DFlashDrafter:
    """Drafts a block in one pass from the target's tapped hidden states."""

    def __init__(self, model: DFlash, embedding: Tensor, head: Tensor, candidates: int) -> None:
        """Takes the drafter, and the target's input and output tables [vocabulary, hidden].

        Args:
            model: the loaded drafter.
            embedding: the target's input table.
            head: rows of the target's output table that may be drafted: all, or the first so many.
            candidates: how many tokens a position the Markov head rescores.
        """
        self._session = DFlashSession(model, embedding, head)
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

    def lattice(self, limit: int, width: int) -> Lattice:
        """Scores at most `limit` positions, and at most the block, with at most `width` candidates each.

        The greedy walk over the lattice of `candidates` width is what `propose` drafts.
        """
        return self._session.lattice(self._anchor, min(limit, self._longest), width, self._candidates)


@dataclass(frozen=True, slots=True)
class DFlashCheckpoint:
    """A loaded DFlash checkpoint and the target that it drafts for."""

    model: DFlash
    target: Llama

    @property
    def kind(self) -> str:
        """`dflash`."""
        return "dflash"

    def start(self, settings: Settings) -> DFlashDrafter:
        """A fresh drafter for one request."""
        head = self.target.head.weight[: settings.draft_vocabulary or None]
        return DFlashDrafter(self.model, self.target.embedding, head, settings.markov_candidates)


def load_dflash(folder: Path, _: Mapping[str, Any], target: Llama) -> DFlashCheckpoint:
    """Loads a DFlash checkpoint for `target`."""
    return DFlashCheckpoint(fitting_drafter(folder, target.config), target)
