"""A smaller model of the target's vocabulary as drafter: the classic separate draft model, greedy.

A drafter folder whose architectures is LlamaForCausalLM is one: any checkpoint that the engine loads as a target.
Source: Leviathan et al., Fast inference from transformers via speculative decoding (arXiv 2211.17192).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.base import Settings
from engine.cache import KVCache
from engine.models.llama import Llama
from engine.weights.checkpoint import load_checkpoint
from space.errors import EngineError


class SmallModelDrafter:
    """Continues the text greedily with a model of its own, on a KV cache of its own.

    The cache holds the committed text and, behind it, the last chain; what was accepted of the chain stays, the rest
    is rolled back.
    """

    def __init__(self, model: Llama, chunk: int) -> None:
        """Takes a loaded model, and how many prompt rows go into one of its passes."""
        self._model = model
        self._chunk = chunk
        self._cache = KVCache(model.config, model.config.max_position)
        self._text: list[int] = []
        self._cached: list[int] = []

    @property
    def taps(self) -> tuple[int, ...]:
        """None: it reads text only."""
        return ()

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Takes committed tokens; the model sees them when a draft is wanted."""
        self._text += tokens

    @torch.inference_mode()
    def propose(self, limit: int) -> list[int]:
        """Returns `limit` tokens, fewer where the model's positions end."""
        limit = min(limit, self._model.config.max_position - len(self._text))
        if limit < 1:
            return []
        self._roll_back()
        drafted: list[int] = []
        while len(drafted) < limit:
            drafted.append(self._next((*self._text, *drafted)))
        return drafted

    def _roll_back(self) -> None:
        """Forgets what does not begin the text, and its newest token: the pass over it gives the first guess."""
        kept = 0
        for cached, token in zip(self._cached, self._text[:-1], strict=False):
            if cached != token:
                break
            kept += 1
        del self._cached[kept:]
        self._cache.length = kept

    def _next(self, text: Sequence[int]) -> int:
        for start in range(len(self._cached), len(text), self._chunk):
            piece = text[start : start + self._chunk]
            positions = torch.arange(start, start + len(piece))
            hidden = self._model.forward(torch.tensor(piece), positions, self._cache)
            self._cache.commit(list(range(len(piece))))
            self._cached += piece
        return int(self._model.logits(hidden[-1:]).argmax())


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A loaded small model that has the target's vocabulary."""

    model: Llama

    @property
    def kind(self) -> str:
        """`small`."""
        return "small"

    def start(self, settings: Settings) -> SmallModelDrafter:
        """A fresh drafter for one request, in the weight layout of the settings."""
        self.model.use(settings.linear_path)
        return SmallModelDrafter(self.model, settings.prefill_chunk)


def load_small(folder: Path, _: Mapping[str, Any], target: Llama) -> SmallModel:
    """Loads a small model for `target`; EngineError where its vocabulary is another one."""
    model = load_checkpoint(folder)
    if model.config.vocab != target.config.vocab:
        raise EngineError(
            f"{folder / 'config.json'}: vocab_size is {model.config.vocab}, the target has {target.config.vocab}; "
            "a small model drafts in the target's own vocabulary"
        )
    return SmallModel(model)
