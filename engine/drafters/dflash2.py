"""DFlash2: DFlash with a short convolution around every sublayer and a selector that ties the guesses together.

The convolution mixes a row with the ones before it in the same block, by kernels that depend on the row; the selector
scores each of a position's best candidates with the one chosen before it. Source: DFlash2 (z-lab);
docs/drafter-formats.md has the layout.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.base import Lattice
from engine.drafters.dflash_body import (
    DFlashConfig,
    DraftBody,
    DraftLayer,
    DraftTables,
    KeysValues,
    Rotary,
)
from engine.drafters.lattice import best_first, pair_lattice, row_lattice
from space.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlash2Config(DFlashConfig):
    """Shape of a DFlash2 drafter: taps and channels a group of the convolution, rank and candidates of the selector."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    def __post_init__(self) -> None:
        DFlashConfig.__post_init__(self)
        if self.hidden_size % self.conv_group_size:
            raise EngineError(
                f"conv_group_size {self.conv_group_size} must divide hidden_size {self.hidden_size}: "
                "the channels of a group share one kernel"
            )


class GroupedConvolution(nn.Module):
    """A causal convolution over the rows of a block, before (side 0) and after (side 1) a sublayer.

    Kernels are a learned one a channel plus one that the row itself asks for, which a group of channels shares.
    """

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        hidden, self.taps, self.group = config.hidden_size, config.conv_kernel_size, config.conv_group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * self.taps * (hidden // self.group), bias=False)

    def kernels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides' kernels [..., rows, taps, hidden] for the sublayer's input [..., rows, hidden]."""
        asked = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1)).repeat_interleave(self.group, -1)
        before, after = (self.base_kernel + asked).unbind(-3)
        return before, after

    def forward(self, x: Tensor, kernels: Tensor) -> Tensor:
        """Sums each row and those before it in the block [..., rows, hidden], weighted by the row's kernels."""
        mixed = x * kernels[..., 0, :]
        for tap in range(1, self.taps):
            mixed = mixed + F.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :] * kernels[..., tap, :]
        return mixed


class ConvolvedLayer(DraftLayer):
    """A decoder layer whose sublayers stand between two convolutions. The injected context is not convolved."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__(config)
        self.attention_conv = GroupedConvolution(config)
        self.mlp_conv = GroupedConvolution(config)

    def forward(self, x: Tensor, table: Rotary, context: KeysValues, mask: Tensor | None) -> Tensor:
        """Maps block rows [..., rows, hidden] to the same shape."""
        inner = self.input_layernorm(x)
        before, after = self.attention_conv.kernels(inner)
        attended = self.self_attn(self.attention_conv(inner, before), table, context, mask)
        x = x + self.attention_conv(attended, after)
        inner = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.kernels(inner)
        out: Tensor = x + self.mlp_conv(self.mlp(self.mlp_conv(inner, before)), after)
        return out


class CandidateSelector(nn.Module):
    """Scores pairs: predecessor's row, turned by the position's hidden state, times the candidate's row."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        rank = config.selector_rank
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.zeros(config.vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(config.vocab_size, rank))

    def forward(self, turned: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """Scores [n, m] float32 of m candidate ids after n token ids; `turned` is the projected hidden state [rank]."""
        queries = self.predecessor_codebook[before].float() * turned.float()
        return F.linear(queries, self.successor_codebook[candidates].float())


class DFlash2(DraftBody):
    """The body with convolutions, and the candidate selector."""

    config: DFlash2Config

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__(config, lambda _: ConvolvedLayer(config))
        self.candidate_selector = CandidateSelector(config)

    def lattice(
        self, hidden: Tensor, anchor: Tensor, tables: DraftTables, candidates: int | None, width: int
    ) -> Lattice:
        """Candidates are the best by the head, at most as many as in training; edges are the selector's scores."""
        logits = self.adjusted(F.linear(hidden, tables.head))
        if candidates is None:
            rows = best_first(logits, width)
            return row_lattice(rows, logits, tables.tokens(rows), width)
        most = self.config.selector_top_k
        rows = best_first(logits, min(candidates or most, most))
        unary, tokens = logits.gather(-1, rows), tables.tokens(rows)
        turned = self.candidate_selector.hidden_projection(hidden)

        def after(position: int, before: Tensor, path: Tensor) -> Tensor:
            pairs: Tensor = self.candidate_selector(turned[position], before, tokens[position])
            return unary[position] + pairs

        return pair_lattice(tokens, anchor, after, width)
