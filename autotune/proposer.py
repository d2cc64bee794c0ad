"""What to try next: seeds and their union, then the operator that the bandit draws; never what was judged before."""

import random
from collections.abc import Sequence

from autotune.base import Operator, Proposal, Trial
from autotune.credit import credits, probabilities
from autotune.domains import every_genome
from autotune.history import Tried
from autotune.operators.random_knobs import RandomKnobs
from autotune.operators.seed import Quartiles, Seed
from autotune.operators.union import Union
from autotune.parents import CellOf
from space.knobs import KnobSpace

# Draws whose genome was already tried, before random knobs take over; and random draws before the space is walked.
DRAWS = 16
RANDOM_DRAWS = 32


class Proposer:
    """Chooses among operators. Stateless: a function of the history and the generator."""

    def __init__(self, space: KnobSpace, operators: Sequence[Operator], cell_of: CellOf) -> None:
        """Proposes genomes of `space`; `cell_of` maps a descriptor to its cell, for the operators' credit."""
        self.space = space
        self._operators = {operator.name: operator for operator in operators}
        self._cell_of = cell_of
        self._single = Seed()
        self._union = Union()
        self._quartiles = Quartiles()
        self._random = RandomKnobs()

    def propose(self, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns the next proposal; None when every genome of the space was tried."""
        tried = Tried.of(history)
        return (
            self._single.propose(self.space, history, rng)
            or self._first_union(history, rng)
            or self._quartiles.propose(self.space, history, rng)
            or self._by_bandit(history, tried, rng)
            or self._by_chance(history, tried, rng)
            or self._by_walk(tried)
        )

    def _first_union(self, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Right after the single changes, once: what helped apart is the likeliest to help together."""
        if any(trial.attempt.operator == self._union.name for trial in history):
            return None
        return self._union.propose(self.space, history, rng)

    def _by_bandit(self, history: Sequence[Trial], tried: Tried, rng: random.Random) -> Proposal | None:
        ready = probabilities(credits(history, list(self._operators), self._cell_of)) if self._operators else {}
        for _ in range(DRAWS):
            if not ready:
                return None
            name = rng.choices(list(ready), list(ready.values()))[0]
            proposal = self._operators[name].propose(self.space, history, rng)
            if proposal is None:
                del ready[name]
            elif tried.allows(proposal.genome):
                return proposal
        return None

    def _by_chance(self, history: Sequence[Trial], tried: Tried, rng: random.Random) -> Proposal | None:
        for _ in range(RANDOM_DRAWS):
            proposal = self._random.propose(self.space, history, rng)
            if proposal is not None and tried.allows(proposal.genome):
                return proposal
        return None

    def _by_walk(self, tried: Tried) -> Proposal | None:
        """The first genome left, in the order of the space: at most one step more than there were trials."""
        left = (genome for genome in every_genome(self.space) if tried.allows(genome))
        return next((Proposal(genome=genome, parents=(), operator="walk") for genome in left), None)
