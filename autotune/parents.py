"""Parents from the MAP-Elites grid: fast cells more often, and cells whose children lately improved nothing less often.

The grid is MAP-Elites (Mouret and Clune, 2015); preferring cells by the success of their offspring is the curiosity
score of Cully and Demiris (2018), here recomputed from history instead of kept.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from archive.base import Descriptor
from autotune.base import Trial
from autotune.history import measured, ratio, searched

Cell: TypeAlias = Hashable
CellOf: TypeAlias = Callable[[Descriptor], Cell]

# At 0.9 of the best speed a cell is chosen 0.43 as often as the best one.
SHARPNESS = 8


def cell_key(trial: Trial, cell_of: CellOf) -> Cell:
    """The trial's cell; trials without a descriptor share the cell None."""
    descriptor = trial.evaluation.descriptor
    return None if descriptor is None else cell_of(descriptor)


def elites(history: Sequence[Trial], cell_of: CellOf) -> dict[Cell, Trial]:
    """The fastest ok trial of each cell; the earlier one on equal speed."""
    best: dict[Cell, Trial] = {}
    for trial in measured(history):
        cell = cell_key(trial, cell_of)
        if cell not in best or ratio(trial) > ratio(best[cell]):
            best[cell] = trial
    return best


def fruitless(history: Sequence[Trial], cell_of: CellOf) -> dict[Cell, int]:
    """For each cell, how many children its members had since one of them last became the elite of any cell."""
    home: dict[str, Cell] = {}
    best: dict[Cell, float] = {}
    counts: dict[Cell, int] = {}
    for trial in searched(history):
        improves = False
        if trial.evaluation.score is not None:
            cell = cell_key(trial, cell_of)
            improves = ratio(trial) > best.get(cell, 0.0)
            home[trial.attempt.genome.id] = cell
            best[cell] = max(ratio(trial), best.get(cell, 0.0))
            counts.setdefault(cell, 0)
        for source in {home[parent]: None for parent in trial.attempt.parents if parent in home}:
            counts[source] = 0 if improves else counts[source] + 1
    return counts


def pick_parent(history: Sequence[Trial], cell_of: CellOf, rng: random.Random) -> Trial | None:
    """Draws an elite; None while nothing ended ok."""
    grid = elites(history, cell_of)
    if not grid:
        return None
    counts = fruitless(history, cell_of)
    fastest = max(ratio(trial) for trial in grid.values())
    weights = [
        (ratio(trial) / fastest) ** SHARPNESS / (1 + counts[cell]) ** 0.5  # sqrt: the best cell stays in use
        for cell, trial in grid.items()
    ]
    return rng.choices(list(grid.values()), weights)[0]
