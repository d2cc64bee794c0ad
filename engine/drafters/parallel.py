"""A parallel neural drafter behind the engine's contract, alone or with suffix drafts in front of it."""

from collections.abc import Sequence

from torch import Tensor

from engine.drafters.dflash import DFlash, DFlashSession
from engine.drafters.suffix import SuffixDrafter
from space.errors import EngineError


class DFlashDrafter:
    """Drafts a block in one pass from the target's tapped hidden states."""

    def __init__(self, model: DFlash, embedding: Tensor, head: Tensor, candidates: int) -> None:
        """Takes the drafter, and the target's input and output tables [vocabulary, hidden].

        Args:
            model: the loaded drafter.
            embedding: the target's input table.
            head: rows of the target's output table that may be drafted: all, or the first so many.
            candidates: how many tokens a position the Markov head rescores.
        """
        self._session = DFlashSession(model, embedding, head)
        self._taps = model.config.target_layer_ids
        self._longest = model.config.draft_length
        self._candidates = candidates
        self._anchor = 0

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers that the drafter was trained on."""
        return self._taps

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Injects the taps of committed positions; the newest token becomes the anchor."""
        if taps is None:
            raise EngineError("a DFlash drafter needs the target's taps with every committed token")
        self._session.extend(taps)
        self._anchor = tokens[-1]

    def propose(self, limit: int) -> list[int]:
        """Returns at most `limit` tokens, and at most the block that the drafter was trained for."""
        return self._session.propose(self._anchor, min(limit, self._longest), self._candidates)


class SuffixFirst:
    """Drafts by suffix where the text repeats itself for long enough, else by the neural drafter."""

    def __init__(self, suffix: SuffixDrafter, neural: DFlashDrafter) -> None:
        """The suffix drafter's own shortest match decides whether it speaks."""
        self._suffix = suffix
        self._neural = neural

    @property
    def taps(self) -> tuple[int, ...]:
        """The neural drafter's."""
        return self._neural.taps

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Both see every committed token."""
        self._suffix.extend(tokens)
        self._neural.extend(tokens, taps)

    def propose(self, limit: int) -> list[int]:
        """Returns the suffix draft, or the neural one where there is none."""
        return self._suffix.propose(limit) or self._neural.propose(limit)
