"""EAGLE-3: one decoder layer that continues the target's own features, token after token.

At a committed position i the layer reads two things side by side: the embedding of the token that follows, i + 1, and
a feature fused from the target's tapped hidden states at i. Its output says what comes at i + 2 and stands in for the
feature of position i + 1 when the chain goes on, since the target has not been there yet. After a verify, the rows of
the chain are forgotten and the committed positions are entered with the target's own taps.

Source: Li et al., EAGLE-3 (arXiv 2503.01840); the later switches (norms before the fusion, normalised feedback) are
those of EAGLE 3.1 in the public checkpoints. engine/drafters/eagle3_files.py reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.drafters.dflash_body import KeysValues, RMSNorm, Rotary, rotary, rotate
from space.errors import EngineError

_CHUNK = 256
"""Committed rows in one pass: bounds the attention mask of a long prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """Shape of a drafter, and what its public variants do differently.

    target_layers: 0-based target layers whose OUTPUT is tapped, ascending; -1 is the embedding's.
    qk_norm: queries and keys are normalised a head, as in the Qwen3 flavour.
    norm_before_residual: the first layer's residual is the normalised feature, not the feature.
    norm_before_fc: one norm over all taps side by side before they are fused.
    fc_norm: one norm for each tap before they are fused.
    norm_before_head: the head reads the normalised output.
    norm_fed_back: the next step reads the normalised output.
    own_embedding, own_head, mapped: the checkpoint has its own input table, its own output table, and a map of its
        draft vocabulary (d2t).
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_layers: tuple[int, ...]
    rms_norm_eps: float
    rope_theta: float
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_head: bool = True
    norm_fed_back: bool = False
    own_embedding: bool = True
    own_head: bool = True
    mapped: bool = True


class Eagle3Attention(nn.Module):
    """Causal grouped-query attention; the first layer's input is two hidden sizes wide."""

    def __init__(self, config: Eagle3Config, width: int) -> None:
        super().__init__()
        size, kv = config.head_dim, config.num_key_value_heads
        self.size = size
        self.groups = config.num_attention_heads // kv
        self.q_proj = nn.Linear(width, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(width, kv * size, bias=False)
        self.v_proj = nn.Linear(width, kv * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(size, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(size, config.rms_norm_eps) if config.qk_norm else nn.Identity()

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.size).transpose(0, 1)

    def forward(self, x: Tensor, table: Rotary, past: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Attends from rows [rows, width] to `past` and to the rows up to their own; returns also past and rows."""
        queries = rotate(self.q_norm(self._heads(self.q_proj(x))), table)
        keys = rotate(self.k_norm(self._heads(self.k_proj(x))), table)
        values = self._heads(self.v_proj(x))
        if past is not None:
            keys, values = torch.cat((past[0], keys), -2), torch.cat((past[1], values), -2)
        mask = torch.ones(len(x), keys.shape[-2], dtype=torch.bool, device=x.device).tril(keys.shape[-2] - len(x))
        all_keys, all_values = (pair.repeat_interleave(self.groups, -3) for pair in (keys, values))
        mixed = F.scaled_dot_product_attention(queries, all_keys, all_values, attn_mask=mask)
        return self.o_proj(mixed.transpose(0, 1).flatten(1)), (keys, values)


class Eagle3MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, hidden] to [rows, hidden]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Eagle3Layer(nn.Module):
    """A pre-norm decoder layer. The first one reads embeddings beside the hidden states."""

    def __init__(self, config: Eagle3Config, *, first: bool) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm = RMSNorm(hidden, eps) if first else None
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Eagle3Attention(config, 2 * hidden if first else hidden)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = Eagle3MLP(hidden, config.intermediate_size)

    def forward(self, embedded: Tensor, x: Tensor, table: Rotary, past: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Maps hidden states x [rows, hidden], with embeddings of the same shape, to the same shape."""
        if self.hidden_norm is None:
            read, residual = self.input_layernorm(x), x
        else:
            normed = self.hidden_norm(x)
            read = torch.cat((self.input_layernorm(embedded), normed), -1)
            residual = normed if self.norm_before_residual else x
        mixed, kept = self.self_attn(read, table, past)
        x = residual + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), kept


class Eagle3(nn.Module):
    """The drafter's weights, by their public names."""

    d2t: Tensor | None

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        hidden, eps, taps = config.hidden_size, config.rms_norm_eps, len(config.target_layers)
        self.fc = nn.Linear(taps * config.target_hidden_size, hidden, bias=False)
        self.input_norm = RMSNorm(taps * config.target_hidden_size, eps) if config.norm_before_fc else None
        norms = [RMSNorm(config.target_hidden_size, eps) for _ in range(taps)] if config.fc_norm else []
        self.fc_norm = nn.ModuleList(norms) if norms else None
        self._tap_norms = norms
        self._stack = [Eagle3Layer(config, first=index == 0) for index in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(self._stack)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False) if config.own_head else None
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if config.own_embedding else None
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64) if config.mapped else None)

    def fuse(self, taps: Tensor) -> Tensor:
        """Features [rows, hidden] of the target's taps [rows, taps * target hidden]."""
        if self._tap_norms:
            parts = taps.chunk(len(self._tap_norms), -1)
            taps = torch.cat([norm(part) for norm, part in zip(self._tap_norms, parts, strict=True)], -1)
        if self.input_norm is not None:
            taps = self.input_norm(taps)
        out: Tensor = self.fc(taps)
        return out

    def forward(
        self, embedded: Tensor, features: Tensor, positions: Tensor, past: Sequence[KeysValues | None]
    ) -> tuple[Tensor, list[KeysValues]]:
        """One pass over rows.

        Args:
            embedded: [rows, hidden] embeddings of the tokens that follow the rows' positions.
            features: [rows, hidden], fused taps or what `fed_back` gives.
            positions: [rows] int64.
            past: for each layer keys and values before the rows, each [kv heads, positions, head_dim], or None.

        Returns:
            Outputs [rows, hidden] before the final norm, and for each layer keys and values with the rows.
        """
        table, kept = rotary(positions, self.config.head_dim, self.config.rope_theta), []
        for layer, before in zip(self._stack, past, strict=True):
            features, pair = layer(embedded, features, table, before)
            kept.append(pair)
        return features, kept

    def before_head(self, output: Tensor) -> Tensor:
        """What the output table is multiplied with."""
        out: Tensor = self.norm(output) if self.config.norm_before_head else output
        return out

    def fed_back(self, output: Tensor) -> Tensor:
        """What stands in for the feature of the next position."""
        out: Tensor = self.norm(output) if self.config.norm_fed_back else output
        return out


class Eagle3Session:
    """One request's drafting. Keys and values are kept of committed positions only."""

    def __init__(self, model: Eagle3, embedding: Tensor, head: Tensor) -> None:
        """Takes the drafter, an input table [vocabulary, hidden] and an output table [draft vocabulary, hidden]."""
        self.model, self.embedding, self.head = model, embedding, head
        self.length = 0
        self._past: list[KeysValues | None] = [None] * model.config.num_hidden_layers
        self._last: Tensor | None = None

    @torch.no_grad()
    def extend(self, taps: Tensor, following: Sequence[int]) -> None:
        """Enters committed positions: their taps [rows, taps * target hidden] and the tokens that follow them."""
        for start in range(0, len(taps), _CHUNK):
            part = taps[start : start + _CHUNK]
            after = torch.tensor(following[start : start + _CHUNK], device=taps.device)
            positions = torch.arange(self.length, self.length + len(part), device=taps.device)
            output, kept = self.model(self.embedding[after], self.model.fuse(part), positions, self._past)
            self._past, self._last = list(kept), output[-1:]
            self.length += len(part)

    @torch.no_grad()
    def logits(self, output: Tensor) -> Tensor:
        """Scores [rows, draft vocabulary] of a pass's output."""
        return F.linear(self.model.before_head(output), self.head)

    @torch.no_grad()
    def propose(self, limit: int) -> list[int]:
        """Drafts `limit` target token ids, one pass each but the first, which the committed positions gave."""
        if self._last is None:
            raise EngineError("the drafter has no context: extend it with the prompt's taps before it proposes")
        output, past, drafted = self._last, self._past, list[int]()
        while len(drafted) < limit:
            if drafted:
                positions = torch.tensor([self.length + len(drafted) - 1], device=output.device)
                embedded = self.embedding[drafted[-1:]]
                output, kept = self.model(embedded, self.model.fed_back(output), positions, past)
                past = list(kept)
            drafted.append(self._target_id(int(self.logits(output).argmax())))
        return drafted

    def _target_id(self, draft_id: int) -> int:
        d2t = self.model.d2t
        return draft_id if d2t is None else draft_id + int(d2t[draft_id])
