"""How likely a drafted token is to be accepted, measured on the steps before: what admission goes by.

It knows depths and counts, and no token: an admission made from it cannot depend on the token that it admits.
"""

from collections import defaultdict

_PRIOR = 0.6
"""The acceptance that is assumed of a depth before anything was measured."""
_WEIGHT = 4.0
"""How many observations the prior counts for."""
_DECAY = 0.98
"""What an observation still counts for when the next one of its depth comes: text changes within an answer."""


class Acceptance:
    """The rate at which tokens of each depth were accepted, given that those before them were.

    A request's rates lean on those of the batch (`pool`) until it has its own; the batch's lean on its mean.
    """

    def __init__(self, pool: "Acceptance | None" = None) -> None:
        """Takes the batch's acceptance for a request's, None for the batch's own."""
        self._pool = pool
        self._hits: defaultdict[int, float] = defaultdict(float)
        self._trials: defaultdict[int, float] = defaultdict(float)

    def observe(self, verified: int, accepted: int) -> None:
        """Takes one verified chain: `accepted` of its `verified` tokens were. The pool takes it too."""
        for depth in range(min(verified, accepted + 1)):
            self._hits[depth] = _DECAY * self._hits[depth] + (depth < accepted)
            self._trials[depth] = _DECAY * self._trials[depth] + 1
        if self._pool is not None:
            self._pool.observe(verified, accepted)

    def rate(self, depth: int) -> float:
        """The estimated probability that the token at `depth` is accepted when those before it are."""
        prior = self._mean() if self._pool is None else self._pool.rate(depth)
        return (self._hits[depth] + _WEIGHT * prior) / (self._trials[depth] + _WEIGHT)

    def survival(self, length: int) -> list[float]:
        """For each of `length` depths, the estimated probability that the chain is accepted up to it. Never rises."""
        found, product = [], 1.0
        for depth in range(length):
            product *= self.rate(depth)
            found.append(product)
        return found

    def _mean(self) -> float:
        return (sum(self._hits.values()) + _WEIGHT * _PRIOR) / (sum(self._trials.values()) + _WEIGHT)
