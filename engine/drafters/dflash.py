"""DFlash: a parallel drafter that reads the target's hidden states, with an optional tied Markov head.

The body follows the public DFlash layout (z-lab); row k of the block predicts its own position. The head is this
project's: logits = E (h + B silu(A [h ; E[previous token]])), E the target's embedding. It ties the K guesses together
like DSpark's Markov head, but needs no table of its own. docs/drafter-training.md has the layout.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.base import Lattice
from engine.drafters.dflash_body import (
    DFlashConfig,
    DraftBody,
    DraftTables,
    KeysValues,
    Rotary,
    rotary,
    rotate,
)
from engine.drafters.lattice import best_first, pair_lattice, row_lattice
from space.errors import EngineError

__all__ = ["DFlash", "DFlashConfig", "DFlashSession", "Rotary", "TiedMarkovHead", "rotary", "rotate"]


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


class DFlash(DraftBody):
    """The body, and a tied Markov head where the config has one."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        self.markov_head = TiedMarkovHead(config.hidden_size, config.markov_rank) if config.markov_rank else None

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
            head: output rows of the tokens that may be drafted [drafted, hidden].
            candidates: 0 scores all of them at each position; else only the best so many by head h.
            ids: the token id of each row of `head` [drafted]; None where row i is token i.

        Returns:
            Token ids [n, K].
        """
        hidden = hidden.contiguous()  # else a matrix product over [n, K] copies the head's table n times
        if self.markov_head is None:
            best = F.linear(hidden, head).argmax(-1)
            return best if ids is None else ids[best]
        # Two-dimensional: a batched product of these shapes takes fifteen times as long on a CPU.
        kept = None
        if candidates:
            scores = F.linear(hidden.flatten(0, 1), head)
            kept = scores.topk(min(candidates, len(head))).indices.view(*hidden.shape[:2], -1)
        previous, drafted = anchors, []
        for k in range(hidden.shape[1]):
            corrected = self.correct(hidden[:, k], embedding[previous])
            if kept is None:
                rows = F.linear(corrected, head).argmax(-1)
            else:
                scores = torch.einsum("nch,nh->nc", head[kept[:, k]].float(), corrected.float())
                rows = kept[:, k].gather(1, scores.argmax(-1, keepdim=True)).squeeze(1)
            previous = rows if ids is None else ids[rows]
            drafted.append(previous)
        return torch.stack(drafted, 1)

    def draft(self, hidden: Tensor, anchor: Tensor, tables: DraftTables, candidates: int | None) -> Tensor:
        """The greedy chain [K], without the log-probabilities that a lattice needs."""
        if candidates is None:
            return tables.tokens(F.linear(hidden, tables.head).argmax(-1))
        return self.chain(hidden[None], anchor, tables.embedding, tables.head, candidates, tables.ids)[0]

    def lattice(
        self, hidden: Tensor, anchor: Tensor, tables: DraftTables, candidates: int | None, width: int
    ) -> Lattice:
        """Candidates are the best by head h; with a head their log-probabilities are after the correction."""
        head, scores = tables.head, F.linear(hidden, tables.head)
        if self.markov_head is None or candidates is None:
            rows = best_first(scores, width)
            return row_lattice(rows, self.adjusted(scores), tables.tokens(rows), width)
        rows = best_first(scores, candidates or len(head))

        def after(position: int, before: Tensor, path: Tensor) -> Tensor:
            corrected = self.correct(hidden[position].expand(len(before), -1), tables.embedding[before])
            return self.adjusted(F.linear(corrected.float(), head[rows[position]].float()))

        return pair_lattice(tables.tokens(rows), anchor, after, width)


class DFlashSession:
    """One request's drafting: takes the taps of committed positions, drafts after the newest committed token."""

    def __init__(self, model: DraftBody, embedding: Tensor, head: Tensor, ids: Tensor | None = None) -> None:
        self.model, self.length = model, 0
        self.tables = DraftTables(embedding=embedding, head=head, ids=ids)
        self._context: list[KeysValues] | None = None

    @torch.no_grad()
    def extend(self, taps: Tensor) -> None:
        """Injects taps [rows, taps * hidden] of newly committed positions; the context never holds a rejected one."""
        fresh = self.model.inject(taps, torch.arange(self.length, self.length + len(taps), device=taps.device))
        self.length += len(taps)
        if self._context is not None:
            fresh = [
                (torch.cat((old[0], new[0]), -2), torch.cat((old[1], new[1]), -2))
                for old, new in zip(self._context, fresh, strict=True)
            ]
        # What has left a layer's window is never seen again: the oldest row in the anchor's window is window - 1 back.
        windows = self.model.config.windows or (0,) * len(fresh)
        self._context = [
            (keys[:, max(0, keys.shape[1] - window + 1) :], values[:, max(0, values.shape[1] - window + 1) :])
            if window
            else (keys, values)
            for (keys, values), window in zip(fresh, windows, strict=True)
        ]

    def _denoise(self, anchor: Tensor, ahead: int = 0) -> Tensor:
        """Hidden states of the drafting rows; the anchor stands `ahead` positions behind the newest committed token.

        The block is as long as in training, whatever is drafted from it: a bidirectional block of another length would
        draft other tokens, and what is drafted would depend on how much is asked for.
        """
        if self._context is None:
            raise EngineError("the drafter has no context: extend it with the prompt's taps before it proposes")
        model, start = self.model, self.length + ahead
        positions = torch.arange(start, start + model.config.block_size, device=anchor.device)
        rows = model.block(self.tables.embedding[anchor])[0]
        hidden: Tensor = model(rows, positions, self._context, model.masks(positions, self.length, self._context))
        return model.drafting_rows(hidden)

    @torch.no_grad()
    def propose(self, anchor: int, limit: int, candidates: int | None = 64) -> list[int]:
        """Drafts at most `limit` tokens after `anchor`, the committed token at position `length`."""
        token = torch.tensor([anchor], device=self.tables.embedding.device)
        drafted = self.model.draft(self._denoise(token)[:limit], token, self.tables, candidates)
        return [int(t) for t in drafted]

    @torch.no_grad()
    def lattice(self, anchor: int, limit: int, width: int, candidates: int | None = 64, ahead: int = 0) -> Lattice:
        """Scores at most `limit` positions after `anchor`, which stands `ahead` positions behind the committed text."""
        token = torch.tensor([anchor], device=self.tables.embedding.device)
        return self.model.lattice(self._denoise(token, ahead)[:limit], token, self.tables, candidates, width)
