"""The static KV cache of one request: room for `capacity` positions, written in place."""

import torch
from torch import Tensor

from engine.models.config import LlamaConfig

BLOCK = 64
"""Attention always reads a multiple of this many positions, masked: a row's sums then fall into the same
vector lanes however many rows are verified with it, which keeps one row and many rows bit-equal on CPUs."""


class KVCache:
    """Keys and values, each [layers, kv_heads, capacity, head_dim] bf16; `length` positions are committed."""

    def __init__(self, config: LlamaConfig, capacity: int) -> None:
        """Allocates zeroed storage; capacity is rounded up to a multiple of BLOCK."""
        self.capacity = -(-capacity // BLOCK) * BLOCK
        shape = (config.layers, config.kv_heads, self.capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=torch.bfloat16)
        self.values = torch.zeros(shape, dtype=torch.bfloat16)
        self.length = 0

    def span(self, rows: int) -> int:
        """How many positions attention reads when `rows` rows are appended: padded to BLOCK."""
        return min(self.capacity, -(-(self.length + rows) // BLOCK) * BLOCK)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Writes [rows, kv_heads, head_dim] keys and values of one layer behind the committed positions."""
        end = self.length + keys.shape[0]
        self.keys[layer, :, self.length : end] = keys.transpose(0, 1)
        self.values[layer, :, self.length : end] = values.transpose(0, 1)

    def commit(self, rows: list[int]) -> None:
        """Keeps these rows (ascending indices into the rows last written) and forgets the others.

        Moves the kept rows together when they are not a prefix, as after a tree verify.
        """
        base, kept = self.length, len(rows)
        if rows != list(range(kept)):
            source = torch.tensor(rows) + base
            for store in (self.keys, self.values):
                store[:, :, base : base + kept] = store[:, :, source]
        self.length = base + kept

    def reset(self) -> None:
        """Forgets everything. Stale values stay behind the mask; they are finite, so their weight is exactly zero."""
        self.length = 0
