"""Prefill: a prompt through the target in chunks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.models.llama import Llama
from space.errors import EngineError


def prefill(
    model: Llama, cache: KVCache, prompt: Sequence[int], chunk: int, taps: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor | None]:
    """Fills an empty cache with a prompt, `chunk` rows a pass.

    Returns:
        [1, vocab] fp32 logits of the first new token, and the tapped outputs of all prompt positions (None without
        taps).

    Raises:
        EngineError: the prompt is empty.
    """
    if not prompt:
        raise EngineError("the prompt is empty: give at least one token")
    tapped = []
    for start in range(0, len(prompt), chunk):
        part = torch.tensor(prompt[start : start + chunk])
        positions = torch.arange(start, start + len(part))
        hidden, tap = model.forward_tapped(part, positions, cache, taps=taps)
        cache.commit(list(range(len(part))))
        tapped += [tap] if tap is not None else []
    return model.logits(hidden[-1:]), torch.cat(tapped) if tapped else None
