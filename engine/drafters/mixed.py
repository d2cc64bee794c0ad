"""Suffix drafts in front of a neural drafter: where text repeats itself, copying is cheaper and surer."""

from collections.abc import Sequence

from torch import Tensor

from engine.base import Drafter, Settings
from engine.drafters.suffix import SuffixDrafter


def suffix_first(settings: Settings, neural: Drafter) -> Drafter:
    """Puts suffix drafts in front of `neural` where the knob asks for it."""
    if not settings.suffix_first:
        return neural
    return SuffixFirst(SuffixDrafter.from_settings(settings, settings.suffix_first), neural)


class SuffixFirst:
    """Drafts by suffix where the text repeats itself for long enough, else by the neural drafter."""

    def __init__(self, suffix: SuffixDrafter, neural: Drafter) -> None:
        """The suffix drafter's own shortest match decides whether it speaks."""
        self.suffix = suffix
        self.neural = neural

    @property
    def taps(self) -> tuple[int, ...]:
        """The neural drafter's."""
        return self.neural.taps

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Both see every committed token."""
        self.suffix.extend(tokens)
        self.neural.extend(tokens, taps)

    def propose(self, limit: int) -> list[int]:
        """Returns the suffix draft, or the neural one where there is none."""
        return self.suffix.propose(limit) or self.neural.propose(limit)
