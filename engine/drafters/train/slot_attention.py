"""Attention of one new token a slot over that slot's cache, each slot at its own length."""

import torch
import torch.nn.functional as F
from torch import Tensor


def slot_attention(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Attends from each slot's newest token to positions 0..positions[slot] of its cache.

    Args:
        queries: [slots, kv heads, query heads a kv head, size].
        keys: [slots, kv heads, length, size], contiguous.
        values: the same shape as keys.
        positions: position of the newest token, int64 [slots].

    Returns:
        Mixed values, the shape of queries.
    """
    if queries.device.type == "cuda":
        # Triton comes with a CUDA build of torch only. Its kernel reads a slot's real length, the plain version all.
        from engine.drafters.train.slot_attention_triton import fused_slot_attention

        return fused_slot_attention(queries, keys, values, positions)
    return plain_slot_attention(queries, keys, values, positions)


def plain_slot_attention(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """The same in plain torch."""
    unseen = torch.arange(keys.shape[2], device=keys.device) > positions[:, None]
    mask = torch.zeros(unseen.shape, dtype=keys.dtype, device=keys.device).masked_fill(unseen, -torch.inf)
    mask = mask[:, None, None].expand(-1, 1, queries.shape[2], -1)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
