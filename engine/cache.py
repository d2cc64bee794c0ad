"""The KV cache of one request, written in place."""

import torch
from torch import Tensor

from engine.models.config import LlamaConfig
from space.errors import EngineError

BLOCK = 64
"""Attention always reads a multiple of this many positions, masked: a row's sums then fall into the same
vector lanes however many rows are verified with it, which keeps one row and many rows bit-equal on CPUs."""


class KVCache:
    """Keys and values, each [layers, kv_heads, room, head_dim] bf16; `length` positions are committed.

    `room` grows with the sequence in steps of BLOCK, so that what attention reads is one contiguous piece a layer: a
    batched product would copy a slice of a larger store at every step.
    """

    def __init__(self, config: LlamaConfig, capacity: int) -> None:
        """Starts empty; it may grow to `capacity` positions, rounded up to a multiple of BLOCK."""
        self.capacity = _rounded(capacity)
        self._shape = (config.layers, config.kv_heads, config.head_dim)
        self.keys, self.values = self._empty(BLOCK), self._empty(BLOCK)
        self.length = 0

    @property
    def room(self) -> int:
        """Positions that are stored now, and that attention reads."""
        return self.keys.shape[2]

    def reserve(self, rows: int) -> int:
        """Makes room for `rows` positions behind the committed ones; returns `room`. EngineError beyond capacity."""
        needed = _rounded(self.length + rows)
        if needed > self.capacity:
            raise EngineError(f"{self.length} + {rows} positions do not fit a cache of {self.capacity}")
        if needed > self.room:
            self.keys, self.values = (self._grown(store, needed) for store in (self.keys, self.values))
        return self.room

    def _grown(self, store: Tensor, room: int) -> Tensor:
        grown = self._empty(room)
        grown[:, :, : self.length] = store[:, :, : self.length]
        return grown

    def _empty(self, room: int) -> Tensor:
        layers, heads, dim = self._shape
        return torch.zeros((layers, heads, room, dim), dtype=torch.bfloat16)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Writes [rows, kv_heads, head_dim] keys and values of one layer behind the committed positions."""
        end = self.length + keys.shape[0]
        self.keys[layer, :, self.length : end] = keys.transpose(0, 1)
        self.values[layer, :, self.length : end] = values.transpose(0, 1)

    def write_all(self, keys: Tensor, values: Tensor) -> None:
        """Writes [rows, layers, kv_heads, head_dim] keys and values of all layers behind the committed positions."""
        end = self.length + keys.shape[0]
        self.keys[:, :, self.length : end] = keys.permute(1, 2, 0, 3)
        self.values[:, :, self.length : end] = values.permute(1, 2, 0, 3)

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
        """Forgets everything, and its room: the next sequence must not read more than its own length needs."""
        self.keys, self.values = self._empty(BLOCK), self._empty(BLOCK)
        self.length = 0


def _rounded(positions: int) -> int:
    return -(-positions // BLOCK) * BLOCK
