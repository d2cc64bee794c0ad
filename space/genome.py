"""A genome: the knobs (and, later, the ordered code patches) that make one candidate. Its id is its content."""

from collections.abc import Mapping
from dataclasses import dataclass

from space.canonical import canonical_json, content_hash
from space.knobs import KnobSpace, KnobValue


@dataclass(frozen=True, slots=True)
class Genome:
    """Knobs in canonical order. Two genomes with the same content have the same id."""

    items: tuple[tuple[str, KnobValue], ...]

    @classmethod
    def of(cls, knobs: Mapping[str, KnobValue]) -> "Genome":
        """Builds a genome from knobs as they are, without validation."""
        return cls(tuple(sorted(knobs.items())))

    @classmethod
    def complete(cls, space: KnobSpace, partial: Mapping[str, KnobValue]) -> "Genome":
        """Fills in defaults and drops inactive knobs first (see KnobSpace.complete)."""
        return cls.of(space.complete(partial))

    @property
    def knobs(self) -> dict[str, KnobValue]:
        """The knobs as a fresh dict."""
        return dict(self.items)

    @property
    def json(self) -> str:
        """Canonical JSON."""
        return canonical_json({"knobs": self.knobs})

    @property
    def id(self) -> str:
        """Content hash, 12 hexadecimal digits."""
        return content_hash({"knobs": self.knobs})

    def complexity(self, space: KnobSpace) -> int:
        """How many knobs differ from their default: ties go to the simpler genome."""
        return sum(value != space.knob(name).default for name, value in self.items)
