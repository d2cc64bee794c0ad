"""DFlash: a parallel drafter that reads the target's hidden states, with an optional tied Markov head.

The body follows the public DFlash layout (z-lab): the target's tapped hidden states are projected once and injected
into every layer as context keys and values; one anchor row and K mask rows are denoised together, and row k predicts
its own position. The head is this project's: logits = E (h + B silu(A [h ; E[previous token]])), E the target's
embedding. It ties the K guesses together like DSpark's Markov head, but needs no table of its own.
docs/drafter-training.md has the layout.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from space.errors import EngineError

Rotary: TypeAlias = tuple[Tensor, Tensor]
KeysValues: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig:
    """Shape of a drafter.

    `target_layer_ids` are 0-based target layers whose OUTPUT is tapped; `markov_rank` 0 means no Markov head;
    `draft_vocab_size` 0 means that every token of the target may be drafted.
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
    draft_vocab_size: int = 0

    def __post_init__(self) -> None:
        ids = self.target_layer_ids
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= self.num_target_layers - 1:
            raise EngineError(
                f"target_layer_ids {list(ids)} must rise strictly within 0..{self.num_target_layers - 2}: "
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
        """Most tokens that one pass drafts: K = block_size - 1."""
        return self.block_size - 1


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
        hidden, size = config.hidden_size, config.head_dim
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.size = size
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=False)
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


class TiedMarkovHead(nn.Module):
    """Shifts a row's hidden state by what the previous token says: h + B silu(A [h ; E[previous]])."""

    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(2 * hidden, rank, bias=False)
        self.out_proj = nn.Linear(rank, hidden, bias=False)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Takes hidden and the previous token's embedding, both [..., hidden]; returns the correction to hidden."""
        out: Tensor = self.out_proj(F.silu(self.in_proj(torch.cat((hidden, previous), -1))))
        return out


class DFlash(nn.Module):
    """The drafter's weights and its two passes: `inject` for committed positions, `forward` for a block."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.stack = [DraftLayer(config) for _ in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(self.stack)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mask_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        self.markov_head = TiedMarkovHead(config.hidden_size, config.markov_rank) if config.markov_rank else None
        self.d2t: Tensor | None
        self.register_buffer(
            "d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64) if config.draft_vocab_size else None
        )

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
        masks = self.mask_embedding.to(anchors.dtype).expand(*anchors.shape[:-1], self.config.draft_length, -1)
        return torch.cat((anchors[..., None, :], masks), -2)

    def forward(self, rows: Tensor, positions: Tensor, context: list[KeysValues], mask: Tensor | None = None) -> Tensor:
        """Final hidden states of block rows [..., rows, hidden] at positions [..., rows] over the injected context."""
        table = self._table(positions)
        for layer, pair in zip(self.stack, context, strict=True):
            rows = layer(rows, table, pair, mask)
        out: Tensor = self.norm(rows)
        return out

    def correct(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Hidden states after the Markov head, given the previous tokens' embeddings; unchanged without a head."""
        return hidden if self.markov_head is None else hidden + self.markov_head(hidden, previous)

    def chain(
        self,
        hidden: Tensor,
        anchors: Tensor,
        embedding: Tensor,
        head: Tensor,
        candidates: int = 0,
        ids: Tensor | None = None,
    ) -> Tensor:
        """Drafts greedily, left to right.

        Args:
            hidden: the mask rows' hidden states [n, K, hidden].
            anchors: anchor token ids [n].
            embedding: the target's input table [vocabulary, hidden].
            head: the target's output rows of the tokens that may be drafted [draft vocabulary, hidden].
            candidates: 0 scores the whole draft vocabulary at each position; else only the best so many by head h.
            ids: the token of each row of `head`, int64 [draft vocabulary]; None where row and token are the same.

        Returns:
            Token ids [n, K].
        """
        hidden = hidden.contiguous()  # else a matrix product over [n, K] copies the head's table n times
        if self.markov_head is None:
            rows = F.linear(hidden, head).argmax(-1)
            return rows if ids is None else ids[rows]
        # Two-dimensional: a batched product of these shapes takes fifteen times as long on a CPU.
        unary = F.linear(hidden.flatten(0, 1), head) if candidates else None
        kept = unary.topk(candidates).indices.view(*hidden.shape[:2], -1) if unary is not None else None
        previous, drafted = anchors, []
        for k in range(hidden.shape[1]):
            corrected = self.correct(hidden[:, k], embedding[previous])
            if kept is None:
                row = F.linear(corrected, head).argmax(-1)
            else:
                scores = torch.einsum("nch,nh->nc", head[kept[:, k]], corrected)
                row = kept[:, k].gather(1, scores.argmax(-1, keepdim=True)).squeeze(1)
            previous = row if ids is None else ids[row]
            drafted.append(previous)
        return torch.stack(drafted, 1)


class DFlashSession:
    """One request's drafting: takes the taps of committed positions, drafts after the newest committed token."""

    def __init__(self, model: DFlash, embedding: Tensor, head: Tensor, ids: Tensor | None = None) -> None:
        """`head` and `ids` as in DFlash.chain."""
        self.model, self.embedding, self.head, self.ids, self.length = model, embedding, head, ids, 0
        self._context: list[KeysValues] | None = None

    @torch.no_grad()
    def extend(self, taps: Tensor) -> None:
        """Injects taps [rows, taps * hidden] of newly committed positions; the context never holds a rejected one."""
        fresh = self.model.inject(taps, torch.arange(self.length, self.length + len(taps), device=taps.device))
        self.length += len(taps)
        if self._context is None:
            self._context = fresh
            return
        self._context = [
            (torch.cat((old[0], new[0]), -2), torch.cat((old[1], new[1]), -2))
            for old, new in zip(self._context, fresh, strict=True)
        ]

    @torch.no_grad()
    def propose(self, anchor: int, limit: int, candidates: int = 64) -> list[int]:
        """Drafts at most `limit` tokens after `anchor`, the committed token at position `length`."""
        if self._context is None:
            raise EngineError("the drafter has no context: extend it with the prompt's taps before it proposes")
        model = self.model
        token = torch.tensor([anchor], device=self.embedding.device)
        positions = torch.arange(self.length, self.length + model.config.block_size, device=token.device)
        hidden = model(model.block(self.embedding[token])[0], positions, self._context)
        drafted = model.chain(hidden[None, 1 : limit + 1], token, self.embedding, self.head, candidates, self.ids)
        return [int(t) for t in drafted[0]]
