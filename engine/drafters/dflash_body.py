"""The body that DFlash, DFlash2 and DSpark share: context injected into every layer, a block denoised in one pass.

The target's tapped hidden states are projected once and become context keys and values of every layer; one anchor row
and the mask rows are then denoised together. Source: DFlash (z-lab), whose layout docs/drafter-formats.md describes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.base import Lattice
from space.errors import EngineError

Rotary: TypeAlias = tuple[Tensor, Tensor]
KeysValues: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig:
    """Shape of a drafter.

    `target_layer_ids` are 0-based target layers whose OUTPUT is tapped, -1 the embedding's. `windows` and `causal` have
    one entry a layer, or none where every layer sees everything; a window counts the row itself, 0 is no window.
    Zero means: `markov_rank` no tied Markov head, `target_hidden_size` as the drafter's, `draft_vocab_size` the whole
    vocabulary, `final_logit_softcapping` no cap. `mask_token_id` None means that the mask's row is in the file.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    block_size: int = 8
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1e5
    markov_rank: int = 0
    target_hidden_size: int = 0
    draft_vocab_size: int = 0
    mask_token_id: int | None = None
    attention_bias: bool = False
    windows: tuple[int, ...] = ()
    causal: tuple[bool, ...] = ()
    sample_from_anchor: bool = False
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float = 0.0
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        ids, last = self.target_layer_ids, self.num_target_layers - 2
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < -1 or ids[-1] > last:
            raise EngineError(
                f"target_layer_ids {list(ids)} must rise strictly within 0..{last} (or -1, the embedding): "
                "the last layer's output is not tapped"
            )
        if self.block_size < 2:
            raise EngineError(f"block_size {self.block_size} must be at least 2: one anchor row and one mask row")
        if self.draft_vocab_size > self.vocab_size:
            raise EngineError(f"draft_vocab_size {self.draft_vocab_size} exceeds vocab_size {self.vocab_size}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise EngineError(
                f"num_attention_heads {self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )

    @property
    def draft_length(self) -> int:
        """Most tokens that one pass drafts: K = block_size - 1, or block_size where the anchor's row drafts too."""
        return self.block_size - (0 if self.sample_from_anchor else 1)

    @property
    def tap_size(self) -> int:
        """Channels of one tap."""
        return self.target_hidden_size or self.hidden_size

    @property
    def table_size(self) -> int:
        """Rows of the output table: token ids that can be drafted."""
        return self.draft_vocab_size or self.vocab_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTables:
    """What a drafter reads tokens with and writes them with.

    embedding: input rows of every token id [vocabulary, hidden].
    head: output rows of the tokens that may be drafted [drafted, hidden].
    ids: the token id of each row of `head` [drafted] int64; None where row i is token i.
    """

    embedding: Tensor
    head: Tensor
    ids: Tensor | None = None

    def first(self, count: int) -> "DraftTables":
        """The same with only the first `count` rows of `head` (0 keeps all): with `ids`, the most frequent."""
        if not count:
            return self
        ids = None if self.ids is None else self.ids[:count]
        return DraftTables(embedding=self.embedding, head=self.head[:count], ids=ids)

    def tokens(self, rows: Tensor) -> Tensor:
        """The token ids of rows of `head`."""
        return rows if self.ids is None else self.ids[rows]


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32, returned in the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis of x."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight.float()).to(x.dtype)


def rotary(positions: Tensor, head_dim: int, theta: float) -> Rotary:
    """Cosines and sines, float32 [..., 1, rows, head_dim / 2], of positions [..., rows]; heads share them."""
    powers = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.float()[..., None, :, None] * theta**-powers
    return angles.cos(), angles.sin()


def rotate(x: Tensor, table: Rotary) -> Tensor:
    """Applies rotary embedding in the half-split (neox) order to x [..., heads, rows, head_dim]."""
    cos, sin = table
    left, right = x.float().chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


class DraftAttention(nn.Module):
    """Grouped-query attention whose keys are the injected context followed by the block's own rows."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden, size, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.size = size
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * size, bias=bias)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=bias)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=bias)
        self.q_norm = RMSNorm(size, config.rms_norm_eps)
        self.k_norm = RMSNorm(size, config.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(-3, -2)

    def keys_values(self, x: Tensor, table: Rotary) -> KeysValues:
        """Keys (normalised and rotated) and values, [..., kv heads, rows, head_dim], of x [..., rows, hidden]."""
        return rotate(self.k_norm(self._heads(self.k_proj(x))), table), self._heads(self.v_proj(x))

    def forward(self, x: Tensor, table: Rotary, context: KeysValues, mask: Tensor | None) -> Tensor:
        """Attends from x to context and x; mask [..., rows, context + rows] is added to the scores, None sees all."""
        keys, values = self.keys_values(x, table)
        queries = rotate(self.q_norm(self._heads(self.q_proj(x))), table)
        keys = torch.cat((context[0], keys), -2).repeat_interleave(self.groups, -3)
        values = torch.cat((context[1], values), -2).repeat_interleave(self.groups, -3)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        out: Tensor = self.o_proj(mixed.transpose(-3, -2).flatten(-2))
        return out


class DraftMLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., hidden] to [..., hidden]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """One pre-norm decoder layer of the drafter."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DraftMLP(config)

    def forward(self, x: Tensor, table: Rotary, context: KeysValues, mask: Tensor | None) -> Tensor:
        """Maps block rows [..., rows, hidden] to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), table, context, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


def visible(block: Tensor, context: Tensor, window: int, causal: bool) -> Tensor | None:
    """What block rows may see of context and block: [rows, context + rows] bool, or None for everything.

    `block` and `context` are positions, ascending; `window` counts the row itself, as Hugging Face does; 0 is none.
    """
    if not causal and not window:
        return None
    ahead = torch.cat((context, block)) - block[:, None]
    seen = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    return seen & (ahead.abs() < window) if window else seen


class DraftBody(nn.Module, ABC):
    """A drafter's weights and its two passes: `inject` for committed positions, `forward` for a block."""

    def __init__(self, config: DFlashConfig, layer: Callable[[DFlashConfig], DraftLayer] = DraftLayer) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.tap_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.stack = [layer(config) for _ in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(self.stack)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mask_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        self.d2t: Tensor | None
        count = config.draft_vocab_size
        self.register_buffer("d2t", torch.zeros(count, dtype=torch.int64) if count else None)

    def draft_ids(self) -> Tensor | None:
        """Target token ids [draft vocabulary] that may be drafted, in the file's order; None: all."""
        return None if self.d2t is None else torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def _table(self, positions: Tensor) -> Rotary:
        return rotary(positions, self.config.head_dim, self.config.rope_theta)

    def inject(self, taps: Tensor, positions: Tensor) -> list[KeysValues]:
        """Context keys and values of every layer for taps [..., rows, taps * hidden] at positions [..., rows]."""
        table, context = self._table(positions), self.hidden_norm(self.fc(taps))
        return [layer.self_attn.keys_values(context, table) for layer in self.stack]

    def block(self, anchors: Tensor) -> Tensor:
        """Input rows [..., block_size, hidden] for anchor embeddings [..., hidden]: the anchor, then the masks."""
        masks = self.mask_embedding.to(anchors.dtype).expand(*anchors.shape[:-1], self.config.block_size - 1, -1)
        rows, scale = torch.cat((anchors[..., None, :], masks), -2), self.config.input_embedding_scale
        return rows if scale == 1 else rows * scale

    def forward(
        self,
        rows: Tensor,
        positions: Tensor,
        context: list[KeysValues],
        mask: Tensor | list[Tensor | None] | None = None,
    ) -> Tensor:
        """Final hidden states of block rows [..., rows, hidden] at positions [..., rows] over the injected context.

        A mask [..., rows, context + rows] is for all layers, a list has one for each; without one rows see everything.
        """
        table, masks = self._table(positions), mask if isinstance(mask, list) else [mask] * len(self.stack)
        for layer, pair, seen in zip(self.stack, context, masks, strict=True):
            rows = layer(rows, table, pair, seen)
        out: Tensor = self.norm(rows)
        return out

    def masks(self, positions: Tensor, length: int, context: list[KeysValues]) -> list[Tensor | None]:
        """What each layer lets a block at `positions` [rows] see of a context that ends before position `length`."""
        if not self.config.windows and not self.config.causal:
            return [None] * len(context)
        masks = list[Tensor | None]()
        for layer, (keys, _) in enumerate(context):
            window = self.config.windows[layer] if self.config.windows else 0
            causal = bool(self.config.causal) and self.config.causal[layer]
            before = torch.arange(length - keys.shape[-2], length, device=positions.device)
            masks.append(visible(positions, before, window, causal))
        return masks

    def drafting_rows(self, hidden: Tensor) -> Tensor:
        """The rows of a block [..., block_size, hidden] that draft: all but the anchor's, or all."""
        return hidden[..., 0 if self.config.sample_from_anchor else 1 :, :]

    def adjusted(self, scores: Tensor) -> Tensor:
        """The head's products as the logits that probabilities are taken of, float32; the order does not change."""
        config, scores = self.config, scores.float()
        cap = config.final_logit_softcapping
        if config.output_multiplier != 1:
            scores = scores * config.output_multiplier
        if cap:
            scores = cap * torch.tanh(scores / cap)
        return scores if config.logit_scale == 1 else scores * config.logit_scale

    def draft(self, hidden: Tensor, anchor: Tensor, tables: DraftTables, candidates: int | None) -> Tensor:
        """The greedy chain [K]; arguments as for `lattice`."""
        return self.lattice(hidden, anchor, tables, candidates, 1).ids[:, 0]

    @abstractmethod
    def lattice(
        self, hidden: Tensor, anchor: Tensor, tables: DraftTables, candidates: int | None, width: int
    ) -> Lattice:
        """Scores the best candidates of each position.

        Args:
            hidden: the drafting rows' hidden states [K, hidden], K at least 1.
            anchor: the anchor's token id [1].
            tables: what tokens are read and written with.
            candidates: tokens a position that the pair head (Markov head, selector) rescores; 0 means all that it
                can, None leaves the head out.
            width: most candidates a position in the result.
        """
