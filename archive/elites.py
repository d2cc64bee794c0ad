"""The MAP-Elites grid: where an evaluation belongs, and which one stands for each cell.

The edges are fixed and versioned, never fitted to what was seen, so that an elite cannot drift out of its own cell. The
archive stores raw descriptors; cells and elites are a view. Vocabulary (coverage, QD score) after pyribs; the idea of
MAP-Elites is Mouret and Clune's (arXiv:1504.04909).
"""

import bisect
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archive.base import Attempt, Descriptor, Evaluation, Score
from space.errors import ArchiveError, nearest
from space.genome import Genome
from space.outcome import Outcome

GRID_VERSION = 1
GAPS = ("acceptance", "waste", "draft", "weights", "host")
REGIME_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WIDTH_EDGES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, math.inf)

Pair = tuple[Attempt, Evaluation]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """Bins of the axes: index of the regime's bin, name of the gap, index of the width's bin."""

    regime: int
    gap: str
    width: int

    def describe(self) -> str:
        """The cell in words: `1 request, host, 0.5-1 nodes per token`."""
        low, high = REGIME_EDGES[self.regime], REGIME_EDGES[self.regime + 1] - 1
        requests = f"{low} request{'s' if low > 1 else ''}" if low == high else f"{low}-{high} requests"
        start, end = WIDTH_EDGES[self.width], WIDTH_EDGES[self.width + 1]
        width = f"{start:g}-{end:g}" if math.isfinite(end) else f"{start:g} or more"
        return f"{requests}, {self.gap}, {width} nodes per token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Elite:
    """The evaluation that stands for a cell, with the attempt that it belongs to."""

    attempt: Attempt
    evaluation: Evaluation
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class GridStats:
    """Coverage is the share of the cells of the deployment's regimes; the objective is the ratio to AR."""

    num_elites: int
    cells: int
    coverage: float
    qd_score: float
    norm_qd_score: float
    obj_max: float | None
    obj_mean: float | None


def axes() -> dict[str, Any]:
    """The grid as JSON, infinity as the string `inf`: what the archive records for GRID_VERSION."""
    widths = [edge if math.isfinite(edge) else "inf" for edge in WIDTH_EDGES]
    return {"regime": list(REGIME_EDGES), "gap": list(GAPS), "width": widths}


def _bin(axis: str, value: float, edges: Sequence[float]) -> int:
    """The bin whose lower edge is included; outside the edges is refused, never clipped."""
    if not edges[0] <= value < edges[-1]:
        raise ArchiveError(
            f"descriptor {axis} = {value!r} lies outside the grid (version {GRID_VERSION}): "
            f"allowed is {edges[0]} up to, not including, {edges[-1]}"
        )
    return bisect.bisect_right(edges, value) - 1


def cell_of(descriptor: Descriptor) -> Cell:
    """Derives the cell. ArchiveError names the axis, the value and what is allowed."""
    if descriptor.gap not in GAPS:
        raise ArchiveError(
            f"descriptor gap = {descriptor.gap!r} is not in the grid (version {GRID_VERSION})"
            f"{nearest(descriptor.gap, GAPS)}\nKnown: {', '.join(GAPS)}"
        )
    return Cell(
        regime=_bin("regime", descriptor.regime, REGIME_EDGES),
        gap=descriptor.gap,
        width=_bin("width", descriptor.width, WIDTH_EDGES),
    )


def beats(challenger: Score, incumbent: Score) -> bool:
    """True when the challenger's ratio to AR, less its spread, is above the incumbent's plus its spread."""
    return challenger.ratio_ar * (1 - challenger.spread) > incumbent.ratio_ar * (1 + incumbent.spread)


def _elect(contenders: Sequence[Elite], complexity: Callable[[Genome], int]) -> Elite:
    """Of those that the fastest does not beat: the simplest, then the earliest. The order of arrival does not matter.

    Judged against the fastest and not in turn: "within noise" is not transitive, so a row of ties to ever simpler
    genomes could otherwise walk far below the best.
    """
    fastest = max(contenders, key=lambda elite: (elite.score.ratio_ar, -elite.score.spread, -elite.attempt.number))
    tied = [elite for elite in contenders if not beats(fastest.score, elite.score)]
    return min(tied, key=lambda e: (complexity(e.attempt.genome), e.attempt.number, e.attempt.run_id))


def elites(history: Iterable[Pair], complexity: Callable[[Genome], int]) -> dict[Cell, Elite]:
    """Rebuilds the elites from records, in order of cell. Pure: any order of the same pairs gives the same elites.

    Only outcome ok at stage search competes: confirmations run other prompts. `complexity` is usually
    `lambda genome: genome.complexity(space)`.
    """
    contenders: dict[Cell, list[Elite]] = {}
    for attempt, evaluation in history:
        if evaluation.outcome is not Outcome.OK or evaluation.stage != "search":
            continue
        if evaluation.score is None or evaluation.descriptor is None:
            raise ArchiveError(f"attempt {attempt.run_id}/{attempt.number} is ok without a score and a descriptor")
        elite = Elite(attempt=attempt, evaluation=evaluation, score=evaluation.score)
        contenders.setdefault(cell_of(evaluation.descriptor), []).append(elite)
    return {cell: _elect(contenders[cell], complexity) for cell in sorted(contenders)}


def grid_stats(view: Mapping[Cell, Elite], regimes: Sequence[int]) -> GridStats:
    """Statistics over the cells of the regimes that a deployment asks for, such as (1,)."""
    rows = {_bin("regime", regime, REGIME_EDGES) for regime in regimes}
    cells = len(rows) * len(GAPS) * (len(WIDTH_EDGES) - 1)
    objectives = [elite.score.ratio_ar for cell, elite in view.items() if cell.regime in rows]
    total = math.fsum(objectives)
    return GridStats(
        num_elites=len(objectives),
        cells=cells,
        coverage=len(objectives) / cells,
        qd_score=total,
        norm_qd_score=total / cells,
        obj_max=max(objectives, default=None),
        obj_mean=statistics.fmean(objectives) if objectives else None,
    )
