"""What a drafter is trained for, and how its drafts compare with the target's own tokens at given anchors."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.drafters.dflash import DFlash
from engine.drafters.train.corpus import Batch

TOPS = (1, 2, 4, 8, 16)
_DECAY = 4.0  # position k weighs exp(-(k-1)/4), about the chance that the draft survives that far


def block_hidden(model: DFlash, embedding: Tensor, batch: Batch) -> Tensor:
    """Hidden states [b, a, k, hidden] of every anchor's mask rows."""
    columns = torch.arange(batch.taps.shape[1], device=batch.taps.device)
    context = model.inject(batch.taps, columns)
    rows = model.block(embedding[batch.anchors])
    hidden: Tensor = model(rows.flatten(1, 2), batch.positions.flatten(1), context, batch.mask)
    return hidden.view(*batch.positions.shape, -1)[:, :, 1:]


NOT_DRAFTED = -1
"""Label of a token outside the draft vocabulary: it teaches nothing, and no draft can hit it."""


def objective(model: DFlash, embedding: Tensor, head: Tensor, batch: Batch, labels: Tensor, headed: Tensor) -> Tensor:
    """Cross-entropy on the target's greedy tokens, given the true previous token; earlier positions weigh more.

    `headed` [b, a, k] is 1 where the Markov head applies and 0 where the row must do without: drafting picks candidates
    by E h before it applies the Markov head, so E h alone has to rank well too. `embedding` is the target's
    table, `head` its rows of the draft vocabulary; labels [b, a, k] are rows of `head`, or NOT_DRAFTED.
    """
    hidden = block_hidden(model, embedding, batch)
    if model.markov_head is not None:
        hidden = hidden + headed[..., None] * model.markov_head(hidden, embedding[batch.previous])
    steps = torch.arange(hidden.shape[2], device=hidden.device)
    weights = batch.inside * torch.exp(-steps / _DECAY)
    logits = F.linear(hidden.flatten(0, 2), head.to(hidden.dtype))
    losses = F.cross_entropy(logits.float(), labels.flatten(), reduction="none", ignore_index=NOT_DRAFTED)
    return (losses * weights.flatten()).sum() / weights.sum()


@dataclass(frozen=True, slots=True)
class Judgement:
    """Drafts at the anchors of a batch, compared with the text.

    accepted, accepted_few [b, a]: tokens that hold of a chain over the whole vocabulary, and of one over the best
    candidates by E h. hits [len(TOPS), k]: true tokens among the best ones given the true previous token; labels [k]:
    of how many.
    """

    accepted: Tensor
    accepted_few: Tensor
    hits: Tensor
    labels: Tensor


@torch.no_grad()
def judge(model: DFlash, embedding: Tensor, head: Tensor, batch: Batch, candidates: int = 64) -> Judgement:
    """Drafts at every anchor and compares with the text; a position past the text's end is never accepted.

    `embedding` and `head` are the target's whole tables.
    """
    ids = model.draft_ids()
    head = head if ids is None else head[ids]
    hidden = block_hidden(model, embedding, batch)
    b, a, k, _ = hidden.shape
    flat, anchors = hidden.flatten(0, 1), batch.anchors.flatten()
    labels, inside = batch.labels.flatten(0, 1), batch.inside.flatten(0, 1)
    few = min(candidates, len(head))
    accepted = [
        ((model.chain(flat, anchors, embedding, head, c, ids) == labels) & (inside > 0))
        .long()
        .cumprod(1)
        .sum(1)
        .view(b, a)
        for c in (0, few)
    ]
    corrected = model.correct(flat, embedding[batch.previous.flatten(0, 1)])
    hits = torch.zeros(len(TOPS), k, device=flat.device)
    for position in range(k):
        rows = F.linear(corrected[:, position], head).topk(min(max(TOPS), len(head)), -1).indices
        best = rows if ids is None else ids[rows]
        found = (best == labels[:, position, None]) & (inside[:, position, None] > 0)
        hits[:, position] = torch.stack([found[:, :top].any(1).sum() for top in TOPS])
    return Judgement(accepted[0], accepted[1], hits, inside.sum(0))
