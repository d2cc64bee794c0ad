"""The EAGLE-3 drafter behind the engine's contract."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.base import Settings
from engine.drafters.eagle3 import Eagle3, Eagle3Session
from engine.drafters.eagle3_files import load_eagle3_model
from engine.models.llama import Llama
from space.errors import EngineError


class Eagle3Drafter:
    """Drafts a chain token by token from the target's tapped hidden states."""

    def __init__(self, model: Eagle3, embedding: Tensor, head: Tensor) -> None:
        """Takes the drafter and the tables that it reads and writes, see Eagle3Session."""
        self._session = Eagle3Session(model, embedding, head)
        self._taps = model.config.target_layers
        self._waiting: list[tuple[Tensor, Sequence[int]]] = []

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers that the drafter was trained on."""
        return self._taps

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Takes committed tokens and the taps of the positions before them; entered when a draft is wanted."""
        if taps is None:
            raise EngineError("an EAGLE-3 drafter needs the target's taps with every committed token")
        self._waiting.append((taps, tokens[-len(taps) :]))

    def propose(self, limit: int) -> list[int]:
        """Returns `limit` tokens."""
        for taps, following in self._waiting:
            self._session.extend(taps, following)
        self._waiting.clear()
        return self._session.propose(limit)


@dataclass(frozen=True, slots=True)
class Eagle3Checkpoint:
    """A loaded EAGLE-3 checkpoint and the target that it drafts for."""

    model: Eagle3
    target: Llama

    @property
    def kind(self) -> str:
        """`eagle3`."""
        return "eagle3"

    def start(self, _: Settings) -> Eagle3Drafter:
        """A fresh drafter for one request; a table that the checkpoint lacks is the target's."""
        own, head = self.model.embed_tokens, self.model.lm_head
        embedding = own.weight if own is not None else self.target.embedding
        return Eagle3Drafter(self.model, embedding, head.weight if head is not None else self.target.head.weight)


def load_eagle3(folder: Path, values: Mapping[str, Any], target: Llama) -> Eagle3Checkpoint:
    """Loads an EAGLE-3 checkpoint for `target`."""
    return Eagle3Checkpoint(load_eagle3_model(folder, values, target.config), target)
