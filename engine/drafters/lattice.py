"""How a parallel drafter's scores become a lattice: the best candidates a position, and what stands before them."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from engine.base import Lattice

PairScores: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]
"""(position, before, path) -> [n, m] scores of the position's m candidates after each of the tokens `before` [n].

`path` is the row of `before` (int64, no axes) through which the greedy walk comes: for heads with a state.
"""


def best_first(scores: Tensor, count: int) -> Tensor:
    """Indices [..., n] of the n = `count` (or all) best of scores [..., m], best first; of equals the lower one."""
    kept = scores.topk(min(count, scores.shape[-1])).indices.sort(-1).values
    order = scores.gather(-1, kept).sort(dim=-1, descending=True, stable=True).indices
    return kept.gather(-1, order)


def row_lattice(rows: Tensor, scores: Tensor, tokens: Tensor, width: int) -> Lattice:
    """A lattice without pair scores, normalised over the whole table.

    Args:
        rows: best table rows of each position, best first [K, n].
        scores: what the softmax is taken of [K, table] float32.
        tokens: the token id of each of `rows` [K, n].
        width: most candidates a position.
    """
    chances = scores.log_softmax(-1).gather(-1, rows[:, :width])
    return Lattice(ids=tokens[:, :width], edges=chances[:, None])


def pair_lattice(tokens: Tensor, anchor: Tensor, scores: PairScores, width: int) -> Lattice:
    """A lattice with pair scores, normalised over all candidates of a position, of which the best are kept.

    Best are those that are likeliest summed over what may stand before; the greedy walk's candidate is always among
    them, so that the drafted chain is in every lattice and is the only one in a lattice of width 1.

    Args:
        tokens: candidates of each position [K, m], target token ids.
        anchor: the newest committed token [1].
        scores: the head's scores of a position's candidates, see `PairScores`.
        width: most candidates kept a position.
    """
    before, reached, ids, edges = anchor, torch.zeros(1, device=anchor.device), list[Tensor](), list[Tensor]()
    path = torch.zeros((), dtype=torch.int64, device=anchor.device)
    for position, candidates in enumerate(tokens):
        chances = scores(position, before, path).log_softmax(-1)
        greedy = chances[path].argmax()
        reached = (reached[:, None] + chances).logsumexp(0)
        kept = best_first(reached, width)
        kept[-1] = torch.where((kept == greedy).any(), kept[-1], greedy)
        path = (kept == greedy).int().argmax()
        before, reached = candidates[kept], reached[kept]
        ids.append(before)
        edges.append(chances[:, kept].expand(len(kept), -1))
    return Lattice(ids=torch.stack(ids), edges=torch.stack(edges))


def greedy_walk(lattice: Lattice) -> tuple[Tensor, Tensor]:
    """The best candidate of each position given the one before: token ids [K] and log-probabilities [K] float32."""
    row, tokens, chances = 0, list[Tensor](), list[Tensor]()
    for ids, edges in zip(lattice.ids, lattice.edges, strict=True):
        best = edges[min(row, len(edges) - 1)].max(-1)
        row = int(best.indices)
        tokens.append(ids[row])
        chances.append(best.values)
    return torch.stack(tokens), torch.stack(chances)


def cut(lattice: Lattice, floor: float) -> Lattice:
    """Ends a lattice before the first position whose confidence is below `floor`; 0 keeps all of it.

    A position's confidence is what a trained head says, where the checkpoint has one, else the probability that the
    drafter itself gives to the greedy walk's candidate.
    """
    if floor <= 0 or not len(lattice.ids):
        return lattice
    sure = lattice.confidence if lattice.confidence is not None else greedy_walk(lattice)[1].exp()
    kept = int((sure >= floor).long().cumprod(0).sum())
    confidence = None if lattice.confidence is None else lattice.confidence[:kept]
    return Lattice(ids=lattice.ids[:kept], edges=lattice.edges[:kept], confidence=confidence)
