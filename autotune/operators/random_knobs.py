"""Uniform draws from the space: the exploration that needs no history, and the yardstick for the other operators."""

import random
from collections.abc import Sequence

from autotune.base import Proposal, Trial
from space.genome import Genome
from space.knobs import KnobSpace


class RandomKnobs:
    """Draws every knob anew."""

    name = "random"

    def propose(self, space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns one draw; history is not looked at."""
        return Proposal(genome=Genome.of(space.sample(rng)), parents=(), operator=self.name)
