"""The forward pass of the Llama family (RMSNorm, rotary positions, grouped-query attention, SwiGLU) over a KV cache.

One call takes any number of rows: a prompt chunk, one AR row, or the nodes of a draft tree with their ancestor mask.
Rows are independent of each other in every operator, so a row's result does not depend on how many come with it
(bit-equal on CPUs whose matrix kernels sum in one order; token forcing measures whether that holds).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.cache import KVCache
from engine.models.config import LlamaConfig
from engine.models.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLayer:
    """One decoder layer. Query and key rows are interleaved: dimensions (2i, 2i+1) rotate together.

    `head_norm`: [heads + kv_heads, head_dim] float32, weights of an RMSNorm of each query and key head before rotation
    (Qwen3), in the order of the interleaved rows; None for Llama.
    """

    attention_norm: Tensor
    qkv: Linear
    out: Linear
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear
    head_norm: Tensor | None = None


def rotate(rows: Tensor, rotation: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    """Turns query or key rows [rows, heads, head_dim] bf16 by rotation [rows, heads, head_dim / 2] complex64.

    `norm` [heads, head_dim] float32, if any, weighs an RMSNorm of each row first.
    """
    wide = rows.float()
    if norm is not None:
        wide = functional.rms_norm(wide, (wide.shape[-1],), None, eps) * norm
    pairs = torch.view_as_complex(wide.view(*wide.shape[:2], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(2).bfloat16()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One request's rows in a pass over the rows of several; the fields are the arguments of `forward_tapped`."""

    tokens: Tensor
    positions: Tensor
    cache: KVCache
    visible: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What attention sees of one request: which rows of the pass are its own, its cache, and what is masked there."""

    rows: slice
    mask: Tensor
    cache: KVCache


class Llama:
    """A loaded model. Not thread-safe: one request at a time."""

    def __init__(
        self, config: LlamaConfig, embedding: Tensor, layers: list[LlamaLayer], norm: Tensor, head: Linear
    ) -> None:
        """Takes loaded weights; see engine/weights/checkpoint.py."""
        self.config = config
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.head = head
        self._rotation = self._rotations(config)
        # Scores are scaled by way of the query's rotation, which costs no operator of its own.
        scale = torch.ones(config.heads + config.kv_heads, 1)
        scale[: config.heads] = config.head_dim**-0.5
        self._query_scale = scale

    @staticmethod
    def _rotations(config: LlamaConfig) -> Tensor:
        frequency = config.rope_theta ** -(torch.arange(0, config.head_dim, 2).double() / config.head_dim)
        angle = torch.arange(config.max_position).double()[:, None] * frequency
        return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)[:, None, :]

    def use(self, linear_path: str) -> None:
        """Chooses the weight layout of every matrix product."""
        for layer in self.layers:
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
                linear.use(linear_path)
        self.head.use(linear_path)

    def forward(self, tokens: Tensor, positions: Tensor, cache: KVCache, visible: Tensor | None = None) -> Tensor:
        """The final hidden states of `forward_tapped`."""
        return self.forward_tapped(tokens, positions, cache, visible)[0]

    def forward_tapped(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KVCache,
        visible: Tensor | None = None,
        taps: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Runs rows through the model and writes their keys and values behind the cache's committed positions.

        Args:
            tokens: [rows] int64 token ids.
            positions: [rows] int64 positions in the sequence; tree siblings share one.
            cache: the request's cache; the caller commits the rows that it keeps.
            visible: [rows, rows] bool, True where a row sees another of these rows (itself included);
                None means a chain: each row sees the ones before it.
            taps: 0-based layers whose outputs are wanted as well, ascending; -1 is the embedding's.

        Returns:
            [rows, hidden] bf16 final hidden states, normalised; and the tapped outputs side by side,
            [rows, len(taps) * hidden] bf16, or None without taps.
        """
        return self.body(self.embedding[tokens], positions, cache, visible, taps)

    def forward_packed(self, parts: Sequence[Rows], taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
        """Runs the rows of several requests in one pass: the weights are read once, attention is each request's own.

        Args:
            parts: each request's rows, with different caches; at least one.
            taps: as for `forward_tapped`.

        Returns:
            As `forward_tapped`, the rows of all parts in order.
        """
        views, start = [], 0
        for part in parts:
            views.append(self._view(start, part.tokens.shape[0], part.cache, part.visible))
            start = views[-1].rows.stop
        x = self.embedding[torch.cat([part.tokens for part in parts])]
        return self._run(x, torch.cat([part.positions for part in parts]), views, taps)

    def body(
        self,
        x: Tensor,
        positions: Tensor,
        cache: KVCache,
        visible: Tensor | None = None,
        taps: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """`forward_tapped` for input rows x [rows, hidden] bf16 instead of tokens."""
        return self._run(x, positions, [self._view(0, x.shape[0], cache, visible)], taps)

    def _view(self, start: int, rows: int, cache: KVCache, visible: Tensor | None) -> _View:
        cache.reserve(rows)
        return _View(rows=slice(start, start + rows), mask=self._mask(rows, cache, visible), cache=cache)

    def _run(
        self, x: Tensor, positions: Tensor, views: Sequence[_View], taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor | None]:
        rotation = self.rotation(positions)
        tapped = [x] if -1 in taps else []
        for index, layer in enumerate(self.layers):
            normed = self._normalise(x, layer.attention_norm)
            x = x + layer.out(self._attend(index, layer, normed, rotation, views))
            gate, up = layer.gate_up(self._normalise(x, layer.ffn_norm)).chunk(2, -1)
            # silu of strided rows takes another code path than of one row: contiguous keeps both bit-equal.
            x = x + layer.down(functional.silu(gate.contiguous()).mul_(up))
            if index in taps:
                tapped.append(x)
        return self._normalise(x, self.norm), torch.cat(tapped, -1) if tapped else None

    def rotation(self, positions: Tensor) -> Tensor:
        """[rows, heads + kv_heads, head_dim / 2] complex64: turns query (scaled) and key rows at positions [rows]."""
        return self._rotation[positions] * self._query_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] bf16 to [rows, vocab] fp32 logits (bf16 products, widened)."""
        return self.head(hidden).float()

    def _normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (self.config.hidden,), weight, self.config.norm_eps)

    def _mask(self, rows: int, cache: KVCache, visible: Tensor | None) -> Tensor:
        """Additive mask [group * rows, room] bf16, query heads of one KV head stacked."""
        room, base = cache.room, cache.length
        if visible is None:
            allowed = torch.arange(room) <= torch.arange(base, base + rows)[:, None]
        else:
            allowed = torch.zeros(rows, room, dtype=torch.bool)
            allowed[:, :base] = True
            allowed[:, base : base + rows] = visible
        mask = torch.zeros(rows, room, dtype=torch.bfloat16).masked_fill_(~allowed, float("-inf"))
        return mask.repeat(self.config.heads // self.config.kv_heads, 1)

    def _attend(self, index: int, layer: LlamaLayer, x: Tensor, rotation: Tensor, views: Sequence[_View]) -> Tensor:
        config, qkv = self.config, layer.qkv(x)
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        rotated = (heads + kv_heads) * dim
        qk = rotate(qkv[:, :rotated].view(-1, heads + kv_heads, dim), rotation, layer.head_norm, config.norm_eps)
        values = qkv[:, rotated:].view(-1, kv_heads, dim)
        mixed = [self._mix(index, qk[view.rows], values[view.rows], view) for view in views]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _mix(self, index: int, qk: Tensor, values: Tensor, view: _View) -> Tensor:
        """Attention of one request's rows, [rows, heads * head_dim]; their keys and values go into the cache."""
        config, cache, rows = self.config, view.cache, qk.shape[0]
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        cache.write(index, qk[:, heads:], values)
        query = qk[:, :heads].view(rows, kv_heads, -1, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
        scores = torch.bmm(query, cache.keys[index].transpose(1, 2)).add_(view.mask)
        attended = torch.bmm(torch.softmax(scores, -1), cache.values[index])
        return attended.view(kv_heads, -1, rows, dim).permute(2, 0, 1, 3).reshape(rows, heads * dim)
