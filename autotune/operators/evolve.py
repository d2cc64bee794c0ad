"""Mutation and crossover of knobs on DEAP's toolbox; the one module that imports deap.

DEAP supplies individuals' fitness, cloning, selection of survivors and the registry of variation operators. Its own
random operators draw from the module-level generator; ours draw from the generator that is passed in, and nothing
global is read or written. Fitness is subclassed instead of made by `deap.creator`, which registers classes globally.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deap import base, tools

from autotune.base import Proposal, Trial
from autotune.domains import at, is_ordered, levels, neighbour, position
from autotune.history import measured, ratio
from autotune.parents import CellOf, pick_parent
from autotune.priors import knob_weights
from space.genome import Genome
from space.knobs import Knob, KnobSpace, KnobValue

SURVIVORS = 12
TOURNAMENT = 3
# Chance that one more knob is changed after each change.
ANOTHER = 0.4
# Chance that a number is drawn anew instead of moved, and how far it moves (share of its range).
REDRAW = 0.2
SIGMA = 0.15


class _Speed(base.Fitness):  # type: ignore[misc]
    """Ratio to AR, maximised."""

    weights = (1.0,)


@dataclass(slots=True)
class _Individual:
    """A genome's knobs as DEAP handles them."""

    id: str
    knobs: dict[str, KnobValue]
    fitness: _Speed


def _individual(trial: Trial) -> _Individual:
    genome = trial.attempt.genome
    return _Individual(genome.id, genome.knobs, _Speed((ratio(trial),)))


def _population(history: Sequence[Trial]) -> list[_Individual]:
    """The survivors: the fastest genomes so far, fastest first."""
    survivors: list[_Individual] = tools.selBest([_individual(t) for t in measured(history)], SURVIVORS)
    return survivors


def _tournament(population: Sequence[_Individual], *, other_than: str, rng: random.Random) -> _Individual:
    others = [individual for individual in population if individual.id != other_than]
    aspirants = rng.sample(others, min(TOURNAMENT, len(others)))
    winner: _Individual = tools.selBest(aspirants, 1)[0]
    return winner


def _changed(space: KnobSpace, knob: Knob, value: KnobValue, rng: random.Random) -> KnobValue:
    """Another value of the knob's domain: near the old one where there is an order, most of the time."""
    if not is_ordered(knob.domain):
        return rng.choice([option for option in levels(knob.domain) if option != value])
    if rng.random() < REDRAW:
        moved = space.sample_value(knob, rng)
    else:
        moved = at(knob.domain, position(knob.domain, value) + rng.gauss(0.0, SIGMA))
    return moved if moved != value else neighbour(knob.domain, value, up=rng.random() < 0.5)


def _donated(population: Sequence[_Individual], name: str, value: KnobValue) -> dict[str, KnobValue]:
    """Knobs of the fastest survivor with this value: what the value switches on starts where it worked best."""
    return next((dict(i.knobs) for i in population if i.knobs.get(name) == value), {})


def _mutate(
    individual: _Individual,
    *,
    space: KnobSpace,
    weights: Mapping[str, float],
    population: Sequence[_Individual],
    rng: random.Random,
) -> tuple[_Individual]:
    """Changes one knob or a few, in place; returns a 1-tuple as DEAP's mutations do."""
    free = [k for k in space.knobs if k.name in individual.knobs and len(levels(k.domain)) > 1]
    while free:
        knob = rng.choices(free, [weights[k.name] for k in free])[0]
        free.remove(knob)
        value = _changed(space, knob, individual.knobs[knob.name], rng)
        individual.knobs = {**_donated(population, knob.name, value), **individual.knobs, knob.name: value}
        if rng.random() >= ANOTHER:
            break
    del individual.fitness.values
    return (individual,)


def _mate(a: _Individual, b: _Individual, *, rng: random.Random) -> tuple[_Individual, _Individual]:
    """Uniform crossover in place: a shared knob is swapped with chance one half, the others go along."""
    for name in sorted({*a.knobs, *b.knobs}):
        if name in a.knobs and name in b.knobs:
            if rng.random() < 0.5:
                a.knobs[name], b.knobs[name] = b.knobs[name], a.knobs[name]
        else:  # conditional on a knob that differs: both carry it, and only the child where it is active keeps it
            a.knobs[name] = b.knobs[name] = a.knobs.get(name, b.knobs.get(name, ""))
    del a.fitness.values, b.fitness.values
    return a, b


def _toolbox(space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> base.Toolbox:
    population = _population(history)
    toolbox = base.Toolbox()
    toolbox.register("select", _tournament, population, rng=rng)
    toolbox.register("mate", _mate, rng=rng)
    weights = knob_weights(space, history)
    toolbox.register("mutate", _mutate, space=space, weights=weights, population=population, rng=rng)
    return toolbox


class Mutation:
    """Changes a few knobs of an elite, those of the dominating gap first."""

    name = "mutate"

    def __init__(self, cell_of: CellOf) -> None:
        """`cell_of` maps a descriptor to its cell of the grid."""
        self._cell_of = cell_of

    def propose(self, space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns a mutant; None while nothing ended ok."""
        parent = pick_parent(history, self._cell_of, rng)
        if parent is None:
            return None
        toolbox = _toolbox(space, history, rng)
        (child,) = toolbox.mutate(toolbox.clone(_individual(parent)))
        genome = Genome.complete(space, child.knobs)
        return Proposal(genome=genome, parents=(parent.attempt.genome.id,), operator=self.name)


class Crossover:
    """Mixes an elite with a survivor that won a tournament; a child like one of them is mutated as well."""

    name = "crossover"

    def __init__(self, cell_of: CellOf) -> None:
        """`cell_of` maps a descriptor to its cell of the grid."""
        self._cell_of = cell_of

    def propose(self, space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns a child; None while fewer than two genomes ended ok."""
        parent = pick_parent(history, self._cell_of, rng)
        if parent is None or len({t.attempt.genome.id for t in measured(history)}) < 2:
            return None
        toolbox = _toolbox(space, history, rng)
        mate = toolbox.select(other_than=parent.attempt.genome.id)
        child, _ = toolbox.mate(toolbox.clone(_individual(parent)), toolbox.clone(mate))
        parents = (parent.attempt.genome.id, mate.id)
        genome = Genome.complete(space, child.knobs)
        if genome.id in parents:
            (child,) = toolbox.mutate(child)
            genome = Genome.complete(space, child.knobs)
        return Proposal(genome=genome, parents=parents, operator=self.name)
