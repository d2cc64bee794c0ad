"""Knobs: one named choice each, with a domain, a default and the condition under which it is active.

A knob value that is not active is not part of a genome: two genomes that decode alike have one hash.
Every knob is lossless by declaration; token forcing checks that the declaration is true.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from space.errors import InputError, nearest

KnobValue: TypeAlias = str | int | float | bool
Knobs: TypeAlias = Mapping[str, KnobValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntDomain:
    """Whole numbers from low to high, both included; log-uniform when `log`."""

    low: int
    high: int
    log: bool = False

    def contains(self, value: KnobValue) -> bool:
        """True for an int (not a bool) inside the range."""
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def canonical(self, value: KnobValue) -> KnobValue:
        """Whole numbers are written in one way only."""
        return value

    def parse(self, text: str) -> KnobValue:
        """Reads a value from text; ValueError for what is no whole number."""
        return int(text)

    def describe(self) -> str:
        """The domain in words, for messages."""
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatDomain:
    """Real numbers from low to high on a grid of `step` that starts at `low`."""

    low: float
    high: float
    step: float

    def contains(self, value: KnobValue) -> bool:
        """True for a number inside the range and on the grid, up to rounding."""
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not self.low <= value <= self.high:
            return False
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-6

    def canonical(self, value: KnobValue) -> KnobValue:
        """One spelling a number, so that 1 and 1.0, or 0.15 and 0.1 + 0.05, give one genome."""
        return round(float(value), 6) if self.contains(value) else value

    def parse(self, text: str) -> KnobValue:
        """Reads a value from text; ValueError for what is no number."""
        return float(text)

    def describe(self) -> str:
        """The domain in words, for messages."""
        return f"a number from {self.low} to {self.high} in steps of {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDomain:
    """One of a few named options."""

    options: tuple[KnobValue, ...]

    def contains(self, value: KnobValue) -> bool:
        """True for one of the options, of the same type."""
        return any(value == option and type(value) is type(option) for option in self.options)

    def canonical(self, value: KnobValue) -> KnobValue:
        """Options are written in one way only."""
        return value

    def parse(self, text: str) -> KnobValue:
        """Reads a value from text; ValueError for what is no option."""
        for option in self.options:
            if str(option) == text:
                return option
        raise ValueError(text)

    def describe(self) -> str:
        """The domain in words, for messages."""
        return "one of " + ", ".join(str(option) for option in self.options)


Domain: TypeAlias = IntDomain | FloatDomain | ChoiceDomain


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Active when knob `name` has one of `values`."""

    name: str
    values: tuple[KnobValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One choice. `gap` names the gap that it addresses (DESIGN: gap priors); `when` is its condition."""

    name: str
    domain: Domain
    default: KnobValue
    gap: str
    help: str
    when: Condition | None = None
    lossless: Literal[True] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Constraint between two active knobs: `low` must not exceed `high`."""

    low: str
    high: str


@dataclass(frozen=True, slots=True)
class KnobSpace:
    """An ordered set of knobs with their constraints. Conditions refer to knobs that stand earlier."""

    version: int
    knobs: tuple[Knob, ...]
    orders: tuple[Order, ...] = ()
    _by_name: dict[str, Knob] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Indexes the knobs by name and checks each name, condition and default."""
        object.__setattr__(self, "_by_name", {knob.name: knob for knob in self.knobs})
        earlier: set[str] = set()
        for knob in self.knobs:
            if knob.name in earlier:
                raise InputError(f"knob {knob.name} is declared twice")
            if knob.when is not None and knob.when.name not in earlier:
                raise InputError(f"knob {knob.name} depends on {knob.when.name}, which must stand before it")
            earlier.add(knob.name)
            if not knob.domain.contains(knob.default):
                raise InputError(f"knob {knob.name}: default {knob.default!r} is not {knob.domain.describe()}")

    def knob(self, name: str) -> Knob:
        """Returns the knob of that name; InputError with the nearest name otherwise."""
        if name not in self._by_name:
            raise InputError(f"unknown knob {name!r}{nearest(name, self._by_name)} Known: {', '.join(self._by_name)}")
        return self._by_name[name]

    def is_active(self, knob: Knob, knobs: Knobs) -> bool:
        """True when the knob's condition holds for these values."""
        return knob.when is None or knobs.get(knob.when.name) in knob.when.values

    def complete(self, partial: Knobs) -> dict[str, KnobValue]:
        """Fills in defaults, drops what is not active, repairs ordered pairs; unknown names are refused.

        Values outside their domain are kept as they are: `validate` refuses them.
        """
        for name in partial:
            self.knob(name)
        full: dict[str, KnobValue] = {}
        for knob in self.knobs:
            if self.is_active(knob, full):
                full[knob.name] = knob.domain.canonical(partial.get(knob.name, knob.default))
        for order in self.orders:
            if order.low in full and order.high in full and full[order.low] > full[order.high]:  # type: ignore[operator]
                full[order.low] = full[order.high]
        return full

    def fixed(self, values: Knobs) -> "KnobSpace":
        """This space with some knobs held at one value each, which becomes their default. InputError as validate."""
        for name, value in values.items():
            if not self.knob(name).domain.contains(value):
                raise InputError(f"knob {name} = {value!r}: allowed is {self.knob(name).domain.describe()}")
        knobs = tuple(
            replace(knob, domain=ChoiceDomain(options=(values[knob.name],)), default=values[knob.name])
            if knob.name in values
            else knob
            for knob in self.knobs
        )
        return replace(self, knobs=knobs)

    def parse(self, name: str, text: str) -> KnobValue:
        """Reads the value of a knob from the command line; InputError names knob, text and what is allowed."""
        domain = self.knob(name).domain
        try:
            value = domain.canonical(domain.parse(text))
        except ValueError:
            value = text
        if not domain.contains(value):
            raise InputError(f"knob {name} = {text}: allowed is {domain.describe()}")
        return value

    def validate(self, knobs: Knobs) -> None:
        """Raises InputError that names key, value and what is allowed."""
        for name, value in knobs.items():
            knob = self.knob(name)
            if not knob.domain.contains(value):
                raise InputError(f"knob {name} = {value!r}: allowed is {knob.domain.describe()}")
            if not self.is_active(knob, knobs) and knob.when is not None:
                allowed = " or ".join(str(option) for option in knob.when.values)
                raise InputError(f"knob {name} = {value!r} has no effect unless {knob.when.name} is {allowed}")
        for knob in self.knobs:
            if self.is_active(knob, knobs) and knob.name not in knobs:
                raise InputError(f"knob {knob.name} is missing: give {knob.domain.describe()}")
        for order in self.orders:
            if order.low in knobs and order.high in knobs and knobs[order.low] > knobs[order.high]:  # type: ignore[operator]
                raise InputError(
                    f"knob {order.low} = {knobs[order.low]!r} must not exceed {order.high} = {knobs[order.high]!r}"
                )

    def sample_value(self, knob: Knob, rng: random.Random) -> KnobValue:
        """Draws one value from the knob's domain."""
        domain = knob.domain
        if isinstance(domain, ChoiceDomain):
            return rng.choice(domain.options)
        if isinstance(domain, FloatDomain):
            return round(domain.low + domain.step * rng.randint(0, round((domain.high - domain.low) / domain.step)), 6)
        if domain.log:
            return min(domain.high, int(domain.low * (domain.high / domain.low) ** rng.random() + 0.5))
        return rng.randint(domain.low, domain.high)

    def sample(self, rng: random.Random) -> dict[str, KnobValue]:
        """Draws a whole, valid set of knobs."""
        return self.complete({knob.name: self.sample_value(knob, rng) for knob in self.knobs})

    def to_json(self) -> dict[str, Any]:
        """The space as JSON: what a resumed run compares with."""
        return {
            "version": self.version,
            "knobs": {knob.name: _in_words(knob) for knob in self.knobs},
            "orders": [f"{order.low} <= {order.high}" for order in self.orders],
        }


def _in_words(knob: Knob) -> str:
    scale = " (log)" if isinstance(knob.domain, IntDomain) and knob.domain.log else ""
    when = "" if knob.when is None else f", when {knob.when.name} is {' or '.join(map(str, knob.when.values))}"
    return f"{knob.domain.describe()}{scale}, default {knob.default}{when}"


def names(knobs: Iterable[Knob]) -> list[str]:
    """The names of knobs, in order."""
    return [knob.name for knob in knobs]
