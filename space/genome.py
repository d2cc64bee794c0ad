"""A genome: the knobs and the ordered code patches that make one candidate. Its id is its content."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from space.canonical import canonical_json, content_hash
from space.knobs import KnobSpace, KnobValue
from space.patch import Patch


@dataclass(frozen=True, slots=True)
class Genome:
    """Knobs in canonical order, and patches in the order in which they are applied.

    Two genomes with the same content have the same id. The JSON names patches by their content address.
    """

    items: tuple[tuple[str, KnobValue], ...]
    patches: tuple[Patch, ...] = ()

    @classmethod
    def of(cls, knobs: Mapping[str, KnobValue]) -> "Genome":
        """Builds a genome from knobs as they are, without validation."""
        return cls(tuple(sorted(knobs.items())))

    @classmethod
    def complete(cls, space: KnobSpace, partial: Mapping[str, KnobValue]) -> "Genome":
        """Fills in defaults and drops inactive knobs first (see KnobSpace.complete)."""
        return cls.of(space.complete(partial))

    def patched(self, patches: Sequence[Patch]) -> "Genome":
        """The same knobs with these patches in the place of its own."""
        return replace(self, patches=tuple(patches))

    @property
    def knobs(self) -> dict[str, KnobValue]:
        """The knobs as a fresh dict."""
        return dict(self.items)

    @property
    def json(self) -> str:
        """Canonical JSON."""
        return canonical_json(self._content())

    @property
    def id(self) -> str:
        """Content hash, 12 hexadecimal digits."""
        return content_hash(self._content())

    def complexity(self, space: KnobSpace) -> int:
        """How many knobs differ from their default, and how many patches there are: ties go to the simpler genome."""
        return sum(value != space.knob(name).default for name, value in self.items) + len(self.patches)

    def _content(self) -> dict[str, object]:
        # Without patches the key is absent: genomes of before there were any keep their ids.
        patches = {"patches": [patch.id for patch in self.patches]} if self.patches else {}
        return {"knobs": self.knobs, **patches}
