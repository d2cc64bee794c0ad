"""What a run may cost: evaluations and wall seconds, over all of its sessions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from autotune.base import Trial
from autotune.history import searched

FINALISTS = 3
# The reserve holds two confirmations; the third finalist takes what is left.
RESERVED = 2
# And so many search evaluations, but at most a tenth of the time, for telling what the winner's choices are worth.
ABLATIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a run. `started` is the clock's reading when this session began.

    `confirm_cost` is the expected cost of a confirmation in search evaluations (it has other prompts), used until one
    was measured. `before` is what earlier sessions spent, in seconds.
    """

    max_evals: int
    seconds: float
    clock: Callable[[], float]
    started: float
    confirm_cost: float = 1.0
    before: float = 0.0

    def resumed(self, trials: Sequence[Trial]) -> "Budget":
        """The budget after earlier sessions, which spent the seconds of these trials."""
        return replace(self, before=sum(t.evaluation.seconds for t in trials))

    def seconds_left(self) -> float:
        """Seconds of wall time that are left; negative when overdrawn."""
        return self.seconds - self.before - (self.clock() - self.started)

    def evals_left(self, trials: Sequence[Trial]) -> int:
        """Search evaluations that are left; confirmations are not counted."""
        return max(0, self.max_evals - len(searched(trials)))

    def affords_search(self, trials: Sequence[Trial]) -> bool:
        """True when one more search evaluation of median cost fits beside the reserve for confirmation."""
        cost = _median_cost(trials, "search")
        free = self.seconds_left() - self._reserve(trials)
        return self.evals_left(trials) > 0 and (free >= cost if cost is not None else free > 0)

    def affords_confirmation(self, trials: Sequence[Trial]) -> bool:
        """True when one more confirmation fits into what is left."""
        return self.seconds_left() >= self._confirmation(trials)

    def affords_ablation(self, trials: Sequence[Trial]) -> bool:
        """True when one more search evaluation of median cost fits into what is left, reserve included."""
        return self.evals_left(trials) > 0 and self.seconds_left() >= (_median_cost(trials, "search") or 0.0)

    def left(self, trials: Sequence[Trial]) -> str:
        """What is left, ready to print: `1m40s, 180 evals`."""
        return f"{format_duration(max(0.0, self.seconds_left()))}, {self.evals_left(trials)} evals"

    def _confirmation(self, trials: Sequence[Trial]) -> float:
        known = _median_cost(trials, "confirm")
        return known if known is not None else self._expected_confirmation(trials)

    def _expected_confirmation(self, trials: Sequence[Trial]) -> float:
        return self.confirm_cost * (_median_cost(trials, "search") or 0.0)

    def _reserve(self, trials: Sequence[Trial]) -> float:
        # A short budget keeps one confirmation only: else it would be spent on confirming the first seed.
        # The expected cost, not the measured one: a cheap confirmation must not send a resumed run back to searching.
        one = self._expected_confirmation(trials)
        ablations = min(ABLATIONS * (_median_cost(trials, "search") or 0.0), self.seconds / 10)
        return min(RESERVED * one, max(one, self.seconds / 3)) + ablations


def _median_cost(trials: Sequence[Trial], stage: str) -> float | None:
    costs = [t.evaluation.seconds for t in trials if t.evaluation.stage == stage and t.evaluation.seconds > 0]
    return median(costs) if costs else None


def format_duration(seconds: float) -> str:
    """Whole seconds as `45s`, `1m40s` or `2h05m`."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
