"""Sampling at temperature above 0, exactly: the committed tokens have the target's own distribution.

Deterministic drafts (every drafter of this engine: the likeliest chain, or the likeliest nodes of a tree) need no test
of their own. Draw each position's token from the target as AR would, and go on while it stands in the draft: the
probability that it does is the target's probability of the drafted candidates, which is also what the rejection rule
below comes to when q is one-hot. `choose` draws; `engine.verify` compares, as for greedy decoding. A position's random
numbers depend on the request's seed and the position only, so speculation emits the very tokens of AR sampling.

Drafts that are drawn from a distribution q need the rejection rule: accept a token with probability min(1, p / q),
else go on with p <- norm(max(p - q, 0)) (Leviathan et al. 2023; Chen et al. 2023). Several siblings are tried one after
the other (SpecInfer, Miao et al. 2023), drawn without replacement, so that q <- q without the rejected token
(recursive rejection sampling, Jeon et al. 2024; Sequoia, Chen et al. 2024).

The random numbers of drafting and of verification are different streams. Coupling them would bias the output.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy
import torch
from torch import Tensor

from engine.base import Sampling
from space.errors import EngineError

VERIFY, DRAFT = 0, 1
"""Which of a position's two streams of random numbers."""

_HEAD = 1024
"""So many of the likeliest tokens nearly always reach top_p."""

Streams: TypeAlias = Callable[[int], numpy.random.Generator]
"""The generator for the token at a depth: 0 is the position right after the committed text."""


def stream(seed: int, position: int, purpose: int = VERIFY) -> numpy.random.Generator:
    """The random numbers of one position of one request, whatever else runs and whatever was drawn before.

    Philox is counter-based: its key is (seed, position), its counter starts at a place of each purpose's own.
    """
    key = numpy.array([seed, position], dtype=numpy.uint64)
    return numpy.random.Generator(numpy.random.Philox(key=key, counter=[0, 0, 0, purpose]))


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """What a token is drawn from: [rows, vocab] float64 probabilities from logits [rows, vocab].

    Temperature first, then top_k, then top_p of what is left. Tokens as likely as the last one kept are kept too, so
    that the order of equals cannot matter. Temperature 0 is one-hot at the argmax.
    """
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    scaled = logits.double() / sampling.temperature
    if 0 < sampling.top_k < scaled.shape[-1]:
        last = scaled.topk(sampling.top_k).values[:, -1:]
        scaled = scaled.masked_fill(scaled < last, float("-inf"))
    p = scaled.softmax(-1)
    if sampling.top_p < 1:
        falling = _falling(p, sampling.top_p)
        needed = (falling.cumsum(-1) < sampling.top_p).sum(-1, keepdim=True).clamp(max=falling.shape[-1] - 1)
        p = p.masked_fill(p < falling.gather(-1, needed), 0.0)
        p = p / p.sum(-1, keepdim=True)
    return p


def _falling(p: Tensor, mass: float) -> Tensor:
    """The largest probabilities of each row, falling, as many as reach `mass` at least: sorting all takes long."""
    if p.shape[-1] > _HEAD:
        head = p.topk(_HEAD).values
        if bool((head.sum(-1) > mass).all()):
            return head
    return p.sort(descending=True).values


def draw(p: Tensor, uniform: float) -> int:
    """The token at `uniform` (in [0, 1)) of the cumulated probabilities p [vocab], in the order of token ids."""
    cumulated = p.cumsum(0)
    at = int(torch.searchsorted(cumulated, uniform * float(cumulated[-1]), right=True))
    return min(at, int(p.nonzero()[-1]))  # rounding may leave the last probable token's interval open at its end


def draw_margin(p: Tensor, token: int, uniform: float) -> float:
    """How far `uniform` lies outside the interval of `token` in the cumulated p [vocab]: 0 where `draw` chooses it."""
    end = float(p[: token + 1].sum())
    return max(0.0, end - float(p[token]) - uniform, uniform - end)


def choose(logits: Tensor, sampling: Sampling, positions: Sequence[int]) -> list[int]:
    """The target's choice in each row: its argmax, or a draw with the random numbers of the token's position.

    Args:
        logits: [rows, vocab] float32.
        sampling: the request's.
        positions: [rows] positions in the sequence of the tokens that the rows predict; siblings share one.
    """
    if sampling.temperature == 0:
        greedy: list[int] = logits.argmax(-1).tolist()
        return greedy
    rows = distribution(logits, sampling)
    uniform = {position: stream(sampling.seed, position).random() for position in sorted(set(positions))}
    return [draw(p, uniform[position]) for p, position in zip(rows, positions, strict=True)]


def draw_siblings(q: Tensor, count: int, generator: numpy.random.Generator) -> list[int]:
    """Draws at most `count` different tokens one after the other from q [vocab], each without those before it.

    Fewer where q has fewer probable tokens. By Gumbel top-k, which has that distribution (Kool et al. 2019).
    """
    gumbel = torch.from_numpy(generator.gumbel(size=q.shape[0]))
    count = min(count, int((q > 0).sum()))
    drawn: list[int] = (q.log() + gumbel).topk(count).indices.tolist()
    return drawn


class Remainder:
    """What is left of the target's and the draft's distribution while siblings are tried in the order drawn."""

    def __init__(self, target: Tensor, drafted: Tensor) -> None:
        """Takes p and q [vocab] float64 at the siblings' parent."""
        self.target, self.drafted = target, drafted

    def acceptance(self, token: int) -> float:
        """The probability min(1, p / q) with which the next sibling is accepted.

        Raises:
            EngineError: q has no such token, so it cannot have been drawn from it.
        """
        q = float(self.drafted[token])
        if q <= 0:
            raise EngineError(f"drafted token {token} has draft probability 0: give the q that it was drawn from")
        return min(1.0, float(self.target[token]) / q)

    def reject(self, token: int) -> None:
        """Goes on without a rejected sibling."""
        left = (self.target - self.drafted).clamp(min=0)
        mass = float(left.sum())
        if mass > 0:  # else p = q, where a rejection has no probability but that of a rounding error
            self.target = left / mass
        rest = self.drafted.clone()
        rest[token] = 0
        self.drafted = rest / rest.sum().clamp(min=torch.finfo(rest.dtype).tiny)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What one verification commits: the accepted nodes, root side first, and the target's own token after them."""

    nodes: tuple[int, ...]
    token: int


def sample_tree(
    tokens: Sequence[int], parents: Sequence[int], target: Tensor, drafted: Tensor | None, streams: Streams
) -> Walk:
    """Walks down a drafted tree by the rejection rule.

    Args:
        tokens: [n] drafted tokens. Siblings stand in the order in which they were drawn.
        parents: [n] each node's parent, an earlier node; -1 for the last committed token.
        target: [n + 1, vocab] float64: the target's p after the last committed token (row 0) and after node i (row
            i + 1).
        drafted: the draft's q in the same rows, from which each row's children were drawn without replacement; rows of
            leaves are not read and may be missing. None for children that no chance chose.
        streams: random numbers by depth.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    path: list[int] = []
    at = -1
    while True:
        p, q = target[at + 1], None if drafted is None or at not in children else drafted[at + 1]
        chosen, token = _descend(p, q, [(child, tokens[child]) for child in children.get(at, ())], streams(len(path)))
        if chosen is None:
            return Walk(nodes=tuple(path), token=token)
        path.append(chosen)
        at = chosen


def sample_chain(draft: Sequence[int], target: Tensor, drafted: Tensor | None, streams: Streams) -> list[int]:
    """Returns the tokens to commit from a drafted chain [k]: a tree without siblings; drafted is [k, vocab]."""
    walk = sample_tree(draft, range(-1, len(draft) - 1), target, drafted, streams)
    return [*(draft[node] for node in walk.nodes), walk.token]


def _descend(
    p: Tensor, q: Tensor | None, siblings: Sequence[tuple[int, int]], generator: numpy.random.Generator
) -> tuple[int | None, int]:
    """The accepted one of (node, token) siblings with its token, or None and the target's own token."""
    if q is None:
        chosen = draw(p, generator.random())
        return next((node for node, token in siblings if token == chosen), None), chosen
    left = Remainder(p, q)
    for node, token in siblings:
        if generator.random() < left.acceptance(token):
            return node, token
        left.reject(token)
    return None, draw(left.target, generator.random())
