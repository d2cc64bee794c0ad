"""Which operator proposes next: a bandit whose credit is measured improvement for its cost. Derived from history."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from autotune.base import Trial
from autotune.history import ratio, searched
from autotune.parents import Cell, CellOf, cell_key
from space.outcome import Outcome

# Each trial ages all credit: what helped in the first minutes says little about the last ones.
DISCOUNT = 0.95
# An improved cell that is not the overall best keeps diversity alive, but is not the aim.
CELL_SHARE = 0.2
# What an operator without trials is assumed to gain (log ratio) in one evaluation: new operators get tried.
PRIOR_GAIN = 0.01
FLOOR = 0.06


class _Gains:
    """Improvement of the best and of the cells, trial by trial."""

    def __init__(self, cell_of: CellOf) -> None:
        self._cell_of = cell_of
        self._best: float | None = None
        self._cells: dict[Cell, float] = {}

    def of(self, trial: Trial) -> float:
        """Log of the improvement that this trial brought; the first of all, and of a cell, improves nothing."""
        if trial.evaluation.outcome is not Outcome.OK:
            return 0.0
        speed, cell = ratio(trial), cell_key(trial, self._cell_of)
        gain = _log_gain(speed, self._best) + CELL_SHARE * _log_gain(speed, self._cells.get(cell))
        self._best = speed if self._best is None else max(self._best, speed)
        self._cells[cell] = max(self._cells.get(cell, speed), speed)
        return gain


def _log_gain(speed: float, before: float | None) -> float:
    return math.log(speed / before) if before is not None and speed > before else 0.0


def credits(history: Sequence[Trial], names: Sequence[str], cell_of: CellOf) -> dict[str, float]:
    """Discounted gain per evaluation's worth of time, by operator; the prior counts as one evaluation."""
    trials = searched(history)
    unit = median([t.evaluation.seconds for t in trials if t.evaluation.seconds > 0] or [1.0])
    gained = dict.fromkeys(names, 0.0)
    spent = dict.fromkeys(names, 0.0)
    gains = _Gains(cell_of)
    for trial in trials:
        for name in names:
            gained[name] *= DISCOUNT
            spent[name] *= DISCOUNT
        gain, name = gains.of(trial), trial.attempt.operator
        if name in gained:
            gained[name] += gain
            spent[name] += trial.evaluation.seconds / unit
    return {name: (PRIOR_GAIN + gained[name]) / (1.0 + spent[name]) for name in names}


def probabilities(credit: Mapping[str, float]) -> dict[str, float]:
    """Proportional to credit above a floor, so that no operator is ever starved. Sums to one."""
    floor = min(FLOOR, 0.5 / len(credit))
    total = sum(credit.values())
    return {name: floor + (1.0 - floor * len(credit)) * value / total for name, value in credit.items()}
