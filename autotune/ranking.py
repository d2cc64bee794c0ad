"""Which trial is best: the fastest, and among those within its noise the simplest."""

import math
from collections.abc import Sequence

from autotune.base import Trial
from autotune.history import measured, ratio
from space.knobs import KnobSpace


def noise(a: Trial, b: Trial) -> float:
    """Difference of the two ratios that their spreads explain."""
    return math.hypot(*(ratio(t) * t.evaluation.score.spread for t in (a, b) if t.evaluation.score is not None))


def fastest_first(trials: Sequence[Trial], stage: str) -> list[Trial]:
    """The trials of a stage that ended ok, by ratio; the earlier one first on equal ratios."""
    return sorted(measured(trials, stage), key=lambda t: (-ratio(t), t.attempt.number))


def within_noise(trials: Sequence[Trial], stage: str) -> list[Trial]:
    """The fastest trial of a stage and those whose distance to it is noise, fastest first."""
    ordered = fastest_first(trials, stage)
    return [t for t in ordered if ratio(ordered[0]) - ratio(t) <= noise(ordered[0], t)]


def best(trials: Sequence[Trial], space: KnobSpace, stage: str = "search") -> Trial | None:
    """The best trial of a stage; None while nothing ended ok."""
    ties = within_noise(trials, stage)
    return min(ties, key=lambda t: (t.attempt.genome.complexity(space), -ratio(t), t.attempt.number), default=None)


def finalists(trials: Sequence[Trial], space: KnobSpace, limit: int) -> list[Trial]:
    """Whom to confirm: the best, the fastest, then the next fastest within the noise; at most `limit`."""
    winner = best(trials, space)
    if winner is None:
        return []
    others = [t for t in within_noise(trials, "search") if t is not winner]
    return [winner, *others][:limit]
