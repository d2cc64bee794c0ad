"""The first proposals: stock, single changes of it, and quartile settings: all from the shape of the space alone."""

import random
from collections.abc import Iterator, Sequence

from autotune.base import Proposal, Trial
from autotune.domains import at, is_ordered
from autotune.history import Tried
from autotune.ranking import best
from space.genome import Genome
from space.knobs import ChoiceDomain, Knob, KnobSpace, KnobValue

QUARTILES = (0.25, 0.75)


def _branches(space: KnobSpace) -> list[tuple[str, KnobValue, list[Knob]]]:
    """The options that switch other knobs on, such as each drafter, with the knobs that they switch on."""
    found: dict[tuple[str, KnobValue], list[Knob]] = {}
    for knob in space.knobs:
        if knob.when is not None:
            for value in knob.when.values:
                found.setdefault((knob.when.name, value), []).append(knob)
    return [(name, value, knobs) for (name, value), knobs in found.items()]


def _levels(space: KnobSpace, knobs: Sequence[Knob], where: float) -> dict[str, KnobValue]:
    # The lower end of an ordered pair mirrors the upper one: else the pair would be one value at every level.
    lows = {order.low for order in space.orders}
    return {k.name: at(k.domain, 1 - where if k.name in lows else where) for k in knobs if is_ordered(k.domain)}


def _single(space: KnobSpace) -> Iterator[dict[str, KnobValue]]:
    yield {}
    for name, value, _ in _branches(space):
        yield {name: value}
    switches = {name for name, _, _ in _branches(space)}
    for knob in space.knobs:
        # Named paths: only a run tells which is faster here. Numbers are left to the search.
        if isinstance(knob.domain, ChoiceDomain) and not is_ordered(knob.domain) and knob.name not in switches:
            yield from ({knob.name: option} for option in knob.domain.options if option != knob.default)


def _quartiles(space: KnobSpace) -> list[dict[str, KnobValue]]:
    return [
        {name: value, **_levels(space, knobs, where)} for where in QUARTILES for name, value, knobs in _branches(space)
    ]


def seeds(space: KnobSpace) -> list[Genome]:
    """Stock (the defaults of a space are stock), each branch's defaults, and other named paths: one change each.

    An option that switches nothing on, such as no drafter at all, is no seed: the baselines measure it anyway.
    """
    genomes = (Genome.complete(space, partial) for partial in _single(space))
    return list({genome.id: genome for genome in genomes}.values())


class Seed:
    """Proposes the seeds in order, each once."""

    name = "seed"

    def propose(self, space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns the first seed that was not tried; None when all were."""
        tried = Tried.of(history)
        left = (genome for genome in seeds(space) if genome not in tried)
        return next((Proposal(genome=genome, parents=(), operator=self.name) for genome in left), None)


class Quartiles:
    """Proposes each branch with its ordered knobs at a quarter and at three quarters of their domains, each once.

    What the branch does not decide, such as named paths, comes from the best genome so far.
    """

    name = "quartile"

    def propose(self, space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns the next setting that makes a new genome; None when all were proposed."""
        leader = best(history, space)
        common = {
            name: value
            for name, value in (leader.attempt.genome.items if leader is not None else ())
            if space.knob(name).when is None
        }
        done = sum(trial.attempt.operator == self.name for trial in history)
        tried = Tried.of(history)
        parents = (leader.attempt.genome.id,) if leader is not None else ()
        genomes = (Genome.complete(space, {**common, **partial}) for partial in _quartiles(space)[done:])
        return next((Proposal(genome=g, parents=parents, operator=self.name) for g in genomes if g not in tried), None)
