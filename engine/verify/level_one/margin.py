"""An online estimator of acceptance, from how far the drafter's first choice lies above its second.

Idea: vLLM's online acceptance estimator (a logistic model on the draft's top-2 margin needs no trained confidence
head). Here one is learnt for every request, by Newton steps on the tokens that the target judged, and prunes chains
and trees alike.
"""

import math
from collections.abc import Sequence

from engine.verify.candidates import Candidates
from engine.verify.level_one.base import LevelOne
from engine.verify.tree import Tree

_PRIOR = 4.0
"""How many certain observations the beginning is worth."""
_FARTHEST = 20.0


class AcceptanceEstimator:
    """P(a node is accepted, given that its parent is) = sigmoid(bias + slope * margin), learnt online.

    It begins with bias 0 and slope 1: what two candidates with that difference of log-probabilities would have.
    """

    def __init__(self) -> None:
        """Starts at the prior."""
        self.bias, self.slope = 0.0, 1.0
        # The curvature of the loss so far, a symmetric matrix [[a, b], [b, c]].
        self._a, self._b, self._c = _PRIOR, 0.0, _PRIOR

    def probability(self, margin: float) -> float:
        """The estimate for one margin."""
        score = max(-30.0, min(30.0, self.bias + self.slope * margin))
        return 1.0 / (1.0 + math.exp(-score))

    def observe(self, margin: float, accepted: bool) -> None:
        """One Newton step on what the target said about a node whose parent it accepted."""
        estimate = self.probability(margin)
        weight = estimate * (1.0 - estimate)
        self._a += weight
        self._b += weight * margin
        self._c += weight * margin * margin
        error = (1.0 if accepted else 0.0) - estimate
        determinant = self._a * self._c - self._b * self._b
        self.bias += error * (self._c - self._b * margin) / determinant
        self.slope += error * (self._a * margin - self._b) / determinant


def margin_of(candidates: Candidates, origin: tuple[int, int]) -> float:
    """Log-probability of a candidate over the best of its rivals; negative for all but the first choice."""
    state, rank = origin
    row = candidates.after(state)
    if len(row) < 2:
        return _FARTHEST
    rival = row[1] if rank == 0 else row[0]
    return max(-_FARTHEST, min(_FARTHEST, rival[0] - row[rank][0]))


class MarginPruning(LevelOne):
    """Takes away nodes whose path is accepted with a probability below the floor, as estimated so far."""

    def __init__(self, floor: float) -> None:
        """Takes the smallest probability of a path that is verified."""
        self._floor = floor
        self._estimator = AcceptanceEstimator()

    def prune(self, tree: Tree, candidates: Candidates) -> Tree:
        """Keeps nodes with a sufficient estimated chance. The estimate never looks at the target's own choice."""
        survival: list[float] = []
        for parent, origin in zip(tree.parents, tree.origins, strict=True):
            chance = self._estimator.probability(margin_of(candidates, origin)) if origin[0] >= 0 else 1.0
            survival.append(chance * (survival[parent] if parent >= 0 else 1.0))
        return tree.kept([chance >= self._floor for chance in survival])

    def learn(self, tree: Tree, candidates: Candidates, committed: Sequence[int]) -> None:
        """Observes the children of every node that was accepted: only there it is known who was right."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents):
            children.setdefault(parent, []).append(node)
        at = -1
        for token in committed:
            accepted = None
            for node in children.get(at, ()):
                if tree.tokens[node] == token:
                    accepted = node
                if tree.origins[node][0] >= 0:
                    self._estimator.observe(margin_of(candidates, tree.origins[node]), tree.tokens[node] == token)
            if accepted is None:
                return
            at = accepted
