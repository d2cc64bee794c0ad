"""The frozen target as training needs it: hidden states of tapped layers in bulk, and one decode step of many slots.

Weights go by their Hugging Face names, so any Llama-shaped model serves. This is not the engine's model: it is batched,
keeps its caches at a fixed size for CUDA graphs, and never computes logits in bulk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.drafters.dflash import Rotary, rotary, rotate
from engine.drafters.train.slot_attention import slot_attention
from space.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Shape of a Llama-style target."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class SlotCache:
    """Keys and values of `slots` sequences of at most `length` tokens: [layers, 2, slots, kv heads, length, size]."""

    def __init__(self, target: "Target", slots: int, length: int) -> None:
        c = target.config
        shape = (c.num_layers, 2, slots, c.num_kv_heads, length, c.head_dim)
        self.data = torch.zeros(shape, dtype=target.embedding.dtype, device=target.device)
        self.slots = torch.arange(slots, device=target.device)


class Target:
    """A frozen Llama-shaped model on one device, all weights in one dtype."""

    def __init__(self, config: TargetConfig, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self.config, self.device = config, device
        # Half of a small model's time goes to small element-wise kernels: on a GPU they are fused.
        fuse = torch.compile(dynamic=True) if device.type == "cuda" else lambda plain: plain
        self._before, self._after = fuse(self._qkv), fuse(self._finish)

        def take(name: str) -> Tensor:
            if name not in weights:
                raise EngineError(f"the target lacks tensor {name!r}; Llama-shaped targets only")
            return weights[name].to(device)

        self.embedding = take("model.embed_tokens.weight")
        self.norm = take("model.norm.weight")
        self.head = take("lm_head.weight") if "lm_head.weight" in weights else self.embedding
        self._layers = []
        for i in range(config.num_layers):
            at = f"model.layers.{i}."
            self._layers.append(
                _Layer(
                    take(at + "input_layernorm.weight"),
                    torch.cat([take(f"{at}self_attn.{p}_proj.weight") for p in "qkv"]),
                    take(at + "self_attn.o_proj.weight"),
                    take(at + "post_attention_layernorm.weight"),
                    torch.cat([take(f"{at}mlp.{p}_proj.weight") for p in ("gate", "up")]),
                    take(at + "mlp.down_proj.weight"),
                )
            )

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _qkv(self, x: Tensor, layer: _Layer, table: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        heads = F.linear(self._normed(x, layer.attention_norm), layer.qkv).view(*x.shape[:-1], -1, c.head_dim)
        turned, v = torch.split(heads.transpose(1, 2), [c.num_heads + c.num_kv_heads, c.num_kv_heads], 1)
        q, k = torch.split(rotate(turned, table), [c.num_heads, c.num_kv_heads], 1)
        return q, k, v

    def _finish(self, x: Tensor, mixed: Tensor, layer: _Layer) -> Tensor:
        x = x + F.linear(mixed, layer.out)
        gate, up = F.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer.down)

    def _table(self, positions: Tensor) -> Rotary:
        return rotary(positions, self.config.head_dim, self.config.rope_theta)

    @torch.no_grad()
    def hidden(self, tokens: Tensor, taps: Sequence[int]) -> Tensor:
        """Outputs of the layers `taps`, side by side: [rows, length, taps * hidden] for tokens [rows, length].

        Rows start at position 0 and may be padded at their end: attention is causal, so padding changes nothing before
        it. Layers above the highest tap do not run.
        """
        c = self.config
        x, kept = self.embedding[tokens], []
        table = self._table(torch.arange(tokens.shape[1], device=self.device)[None])
        for i, layer in enumerate(self._layers[: max(taps) + 1]):
            q, k, v = self._before(x, layer, table)
            groups = c.num_heads // c.num_kv_heads
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self._after(x, mixed.transpose(1, 2).flatten(2), layer)
            if i in taps:
                kept.append(x)
        return torch.cat(kept, -1)

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Next-token logits [rows, length, vocabulary] for tokens [rows, length]; for tests and short texts."""
        last = self.hidden(tokens, [self.config.num_layers - 1])
        return F.linear(self._normed(last, self.norm), self.head)

    @torch.no_grad()
    def decode(self, tokens: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        """Logits [slots, vocabulary] after one token a slot, written to the cache at `positions` [slots].

        Shapes and addresses never change: the call can be captured in a CUDA graph.
        """
        c = self.config
        x, table = self.embedding[tokens][:, None], self._table(positions[:, None])
        for layer, (keys, values) in zip(self._layers, cache.data, strict=True):
            q, k, v = self._before(x, layer, table)
            keys[cache.slots, :, positions] = k[:, :, 0]
            values[cache.slots, :, positions] = v[:, :, 0]
            q = q.reshape(len(tokens), c.num_kv_heads, -1, c.head_dim)
            mixed = slot_attention(q, keys, values, positions)
            x = self._after(x, mixed.reshape(len(tokens), 1, -1), layer)
        return F.linear(self._normed(x[:, 0], self.norm), self.head)
