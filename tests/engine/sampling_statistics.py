"""What the sampling tests share: toy models of a few tokens, exact enumeration, and the chi-square test."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from engine.verify.sampling import Remainder

VOCAB = 4


class Toy:
    """A Markov chain on VOCAB tokens: p(next | last), some of it zero, as after top-k."""

    def __init__(self, seed: int, sharpness: float = 1.5, zeros: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        table = (torch.randn(VOCAB, VOCAB, generator=generator).double() * sharpness).softmax(-1)
        if zeros:
            table[torch.arange(VOCAB), torch.randint(VOCAB, (VOCAB,), generator=generator)] = 0
        self.table = table / table.sum(-1, keepdim=True)

    def next(self, last: int) -> Tensor:
        return self.table[last]

    def texts(self, start: int, length: int) -> dict[tuple[int, ...], float]:
        """The probability of every text of `length` tokens after `start`."""
        found = {}
        for text in itertools.product(range(VOCAB), repeat=length):
            steps = zip((start, *text), text, strict=False)
            found[text] = math.prod(float(self.table[a, b]) for a, b in steps)
        return found


def sibling_draws(q: Tensor, count: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every ordered draw of `count` tokens without replacement, with its probability."""
    for drawn in itertools.permutations([int(t) for t in q.nonzero()], count):
        left, probability = 1.0, 1.0
        for token in drawn:
            probability *= float(q[token]) / left
            left -= float(q[token])
        yield drawn, probability


def committed(p: Tensor, q: Tensor, count: int, remainder: Callable[[Tensor, Tensor], Remainder] = Remainder) -> Tensor:
    """The exact distribution of the token that verification commits after one parent with `count` drawn children."""
    total = torch.zeros_like(p)
    for drawn, probability in sibling_draws(q, count):
        left = remainder(p, q)
        for token in drawn:
            accept = left.acceptance(token)
            total[token] += probability * accept
            probability *= 1 - accept
            left.reject(token)
        total += probability * left.target
    return total


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X >= statistic) for a chi-square variable, by the regularised upper incomplete gamma function."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def plausibility(observed: Counter, expected: dict, least: float = 5.0) -> float:
    """The chi-square test's probability of counts at least as far from `expected` (probabilities) as the observed.

    Rare outcomes are counted together; an impossible one that was observed gives 0.
    """
    trials = sum(observed.values())
    if any(expected.get(outcome, 0.0) == 0.0 for outcome in observed):
        return 0.0
    common = [o for o, p in expected.items() if trials * p >= least]
    cells = [(observed[o], trials * expected[o]) for o in common]
    rest = trials - sum(e for _, e in cells)
    if rest >= least:
        cells.append((trials - sum(n for n, _ in cells), rest))
    statistic = sum((n - e) ** 2 / e for n, e in cells)
    return chi_square_tail(statistic, len(cells) - 1)
