"""Order and distance inside a knob's domain: what mutation steps along and seeds are spaced by."""

import math
from collections.abc import Iterator, Mapping, Sequence

from space.genome import Genome
from space.knobs import ChoiceDomain, Domain, FloatDomain, IntDomain, KnobSpace, KnobValue


def levels(domain: Domain) -> Sequence[KnobValue]:
    """Every value of the domain, in order."""
    if isinstance(domain, ChoiceDomain):
        return domain.options
    if isinstance(domain, IntDomain):
        return range(domain.low, domain.high + 1)
    steps = math.floor((domain.high - domain.low) / domain.step + 1e-9)
    return [round(domain.low + domain.step * i, 6) for i in range(steps + 1)]


def is_ordered(domain: Domain) -> bool:
    """True where neighbouring values are alike: numbers, and choices that are all numbers."""
    if not isinstance(domain, ChoiceDomain):
        return True
    return all(isinstance(option, (int, float)) and not isinstance(option, bool) for option in domain.options)


def nearest_index(domain: Domain, value: KnobValue) -> int:
    """Index of `value` among the levels; a number off the grid goes to the nearest level."""
    if isinstance(domain, IntDomain):
        return int(value) - domain.low
    if isinstance(domain, FloatDomain):
        return min(round((float(value) - domain.low) / domain.step), len(levels(domain)) - 1)
    return domain.options.index(value)


def position(domain: Domain, value: KnobValue) -> float:
    """Where `value` lies between the domain's ends, from 0 to 1; logarithmic for a log domain."""
    last = len(levels(domain)) - 1
    if last == 0:
        return 0.0
    if isinstance(domain, IntDomain) and domain.log:
        return math.log(int(value) / domain.low) / math.log(domain.high / domain.low)
    return nearest_index(domain, value) / last


def at(domain: Domain, where: float) -> KnobValue:
    """The value at a position; positions outside 0 to 1 go to the nearer end."""
    where = min(1.0, max(0.0, where))
    if isinstance(domain, IntDomain) and domain.log:
        return min(domain.high, int(domain.low * (domain.high / domain.low) ** where + 0.5))
    values = levels(domain)
    return values[round(where * (len(values) - 1))]


def neighbour(domain: Domain, value: KnobValue, up: bool) -> KnobValue:
    """The next level in one direction; at an end, the one before it."""
    values = levels(domain)
    index = nearest_index(domain, value)
    other = index + (1 if up else -1)
    return values[other if 0 <= other < len(values) else 2 * index - other]


def every_genome(space: KnobSpace) -> Iterator[Genome]:
    """Walks all valid genomes of a space, lazily and in a fixed order."""

    def walk(index: int, knobs: Mapping[str, KnobValue]) -> Iterator[Genome]:
        if index == len(space.knobs):
            if space.complete(knobs) == knobs:  # else it breaks an order, and its repaired form comes by itself
                yield Genome.of(knobs)
            return
        knob = space.knobs[index]
        if not space.is_active(knob, knobs):
            yield from walk(index + 1, knobs)
            return
        for value in levels(knob.domain):
            yield from walk(index + 1, {**knobs, knob.name: value})

    return walk(0, {})
