"""Puts together what helped apart: the best genome takes over the changes of another one that beat stock.

Changes are counted against the defaults of the space, which are stock; where both changed a knob the best one's stays.
"""

import random
from collections.abc import Sequence

from autotune.base import Proposal, Trial
from autotune.history import Tried, measured, ratio
from autotune.ranking import best, fastest_first, noise
from space.genome import Genome
from space.knobs import KnobSpace, KnobValue


def _changes(space: KnobSpace, genome: Genome) -> dict[str, KnobValue]:
    return {name: value for name, value in genome.items if value != space.knob(name).default}


def _merge(space: KnobSpace, leader: Genome, other: Genome) -> Genome:
    return Genome.complete(space, {**leader.knobs, **_changes(space, other), **_changes(space, leader)})


class Union:
    """Merges the best genome with the fastest other one whose changes it has not, and that makes a new genome."""

    name = "union"

    def propose(self, space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns the merged genome; None when nothing else beat the first trial beyond the noise."""
        leader = best(history, space)
        if leader is None:
            return None
        first = measured(history)[0]
        tried = Tried.of(history)
        for other in fastest_first(history, "search"):
            if ratio(other) - ratio(first) <= noise(other, first):
                return None
            merged = _merge(space, leader.attempt.genome, other.attempt.genome)
            if merged not in tried:
                parents = (leader.attempt.genome.id, other.attempt.genome.id)
                return Proposal(genome=merged, parents=parents, operator=self.name)
        return None
