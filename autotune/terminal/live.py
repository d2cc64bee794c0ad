"""A run as it happens: one line an evaluation and, on a terminal, a live bar under the lines."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from archive.base import Attempt, Evaluation
from autotune.base import Trial
from autotune.terminal.console import print_line
from autotune.terminal.words import (
    OUTCOME_STYLES,
    knob_changes,
    one_line,
    ratio,
    score_cells,
)
from space.genome import Genome
from space.knobs import KnobSpace
from space.outcome import Outcome

_FIGURES = "{:>6} {:>7} {:>6} {:>5} {:>6} "
_HEAD = (
    f"{'#':>4} {'outcome':<9} {_FIGURES.format('x AR', 'x stock', 'spread', 'tau', 'forced')}{'by':<9} {'left':<16} "
)
_REFRESH = 2  # a second: the bar must not take processor time from what is being measured


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """The whole budget and what earlier processes of this run spent of it."""

    seconds: float
    max_evals: int
    seconds_spent: float = 0.0
    evals_spent: int = 0


class _TimeBar(ProgressColumn):
    """A bar that fills with time: `total` is in seconds, and `floor` the fraction that is done at least."""

    def render(self, task: Task) -> ProgressBar:
        """Draws the bar of one task; it pulses when nobody knows how long the task takes."""
        if task.total is None:
            return ProgressBar(total=None, pulse=True, width=24)
        done = max(task.fields["before"] + (task.elapsed or 0.0), task.fields["floor"] * task.total)
        return ProgressBar(total=task.total, completed=min(done, task.total), width=24)


class TerminalObserver:
    """Prints a run. Use as a context manager: the live bar exists inside.

    Implements autotune.base.Observer. A knob change is told against the best so far, or against stock before there
    is one; `history` and `best` (of earlier processes) make that true for a continued run as well. `marker` stands at
    the beginning of every line, such as `predicted`.
    """

    def __init__(
        self,
        console: Console,
        space: KnobSpace,
        stock: Genome,
        budget: BudgetView,
        history: Sequence[Trial] = (),
        best: Evaluation | None = None,
        marker: str = "",
    ) -> None:
        self._console = console
        self._marker = f"{marker} " if marker else ""
        self._space = space
        self._budget = budget
        self._genomes = {trial.attempt.number: trial.attempt.genome for trial in history}
        self._seconds = [trial.evaluation.seconds for trial in history]
        self._reference = stock if best is None else self._genomes[best.attempt]
        self._evals = budget.evals_spent
        self._headed = False
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            _TimeBar(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            refresh_per_second=_REFRESH,
            transient=True,
            disable=not console.is_terminal,
        )
        self._whole: TaskID = self._add_bar("search", budget.seconds, before=budget.seconds_spent)
        self._current: TaskID | None = None

    def __enter__(self) -> Self:
        """Shows the bar, on a terminal."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes the bar; the lines stay."""
        self._progress.stop()

    def evaluation_started(self, attempt: Attempt) -> None:
        """Starts a bar that fills in the time that evaluations usually take."""
        self._genomes[attempt.number] = attempt.genome
        change = one_line(knob_changes(self._space, attempt.genome, self._reference), 48)
        expected = statistics.median(self._seconds) if self._seconds else None
        self._current = self._add_bar(f"#{attempt.number}", expected, note=change)

    def evaluation_finished(self, trial: Trial, budget_left: str, best: Evaluation | None) -> None:
        """Prints the line of the evaluation."""
        self._genomes[trial.attempt.number] = trial.attempt.genome
        self._seconds.append(trial.evaluation.seconds)
        self._evals += 1
        if self._current is not None:
            self._progress.remove_task(self._current)
            self._current = None
        if not self._headed:
            print_line(self._console, " " * len(self._marker) + _HEAD + "change (* a new best)", style="bold")
            self._headed = True
        is_best = best is not None and best.attempt == trial.attempt.number
        print_line(self._console, self._line(trial, budget_left, is_best=is_best))
        if best is not None:
            self._reference = self._genomes.get(best.attempt, self._reference)
        self._progress.update(
            self._whole, note=self._note(budget_left, best), floor=self._evals / self._budget.max_evals
        )

    def _add_bar(self, name: str, seconds: float | None, *, before: float = 0.0, note: str = "") -> TaskID:
        return self._progress.add_task(name, total=seconds, before=before, floor=0.0, note=note)

    def _note(self, budget_left: str, best: Evaluation | None) -> str:
        lead = f"best #{best.attempt} {ratio(best.score.ratio_ar)} AR, " if best and best.score else ""
        return f"{lead}{budget_left} left"

    def _line(self, trial: Trial, budget_left: str, *, is_best: bool) -> Text:
        attempt, evaluation = trial.attempt, trial.evaluation
        by = "confirm" if evaluation.stage == "confirm" else attempt.operator
        numbers = _FIGURES.format(*score_cells(evaluation.score, evaluation.forced))
        change = knob_changes(self._space, attempt.genome, self._reference)
        reason = f"{evaluation.reason} | " if evaluation.outcome is not Outcome.OK and evaluation.reason else ""
        room = max(20, self._console.width - len(_HEAD)) if self._console.is_terminal else None
        return Text.assemble(
            (self._marker, "yellow"),
            f"{attempt.number:>4} ",
            (f"{evaluation.outcome:<9} ", OUTCOME_STYLES.get(evaluation.outcome, "red")),
            (numbers, "bold green" if is_best else ""),
            (f"{one_line(by, 9):<9} {budget_left:<16} ", "dim"),
            one_line(("* " if is_best else "") + reason + change, room),
        )
