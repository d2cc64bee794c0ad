"""The end of a planning run: predicted systems by regime, the gaps before and after, and the mechanisms in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from archive.base import Evaluation
from autotune.ablation import Worth
from autotune.gaps import KINDS, GapReport
from autotune.terminal.console import new_table, print_line, print_table
from autotune.terminal.words import decimal, forced_long, knob_list, percent, ratio
from space.genome import Genome


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRegime:
    """One regime: the confirmed best, its gaps and stock's, its mechanisms as (words, ground), its choices' worth."""

    regime: int
    best: Genome
    evaluation: Evaluation
    before: GapReport
    after: GapReport
    mechanisms: tuple[tuple[str, str], ...]
    worths: tuple[Worth, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A planning run. `objective` is the weighted geometric mean of the ratios to AR over the regimes."""

    deployment: str
    device: str
    stand_in: str
    regimes: tuple[PlannedRegime, ...]
    objective: float
    seconds: float
    evaluations: int
    plot: Path | None
    missing: tuple[str, ...]


def show_plan(console: Console, report: PlanReport) -> None:
    """Prints the report; each block says that it is predicted."""
    print_line(console, "")
    title = f"{report.deployment}, PREDICTED for {report.device}; tokens and acceptance of {report.stand_in}"
    print_line(console, title, style="bold")
    table = new_table()
    table.add_column("predicted")
    for name in ("AR tok/s", "stock tok/s", "best tok/s", "x AR", "x stock", "tau", "forced tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.regimes:
        table.add_row(_requests(row.regime), *_figures(row.evaluation), style="bold green")
    print_table(console, table)
    print_line(console, "")
    for row in report.regimes:
        _show_gaps(console, row)
    print_line(console, "gain: speed with this gap closed alone; left: after closing it and all above it. Ceilings:")
    for kind in KINDS.values():
        print_line(console, f"  {kind.words}: {kind.ceiling}")
    print_line(console, "")
    for row in report.regimes:
        print_line(console, f"chosen at {_requests(row.regime)} (predicted): {row.best.id}  {knob_list(row.best)}")
        for words, ground in row.mechanisms:
            print_line(console, Text.assemble(f"  - {words} ", (f"({ground})", "dim")))
        for worth in row.worths:
            print_line(console, f"  {worth.name} = {worth.value}: faster by {percent(worth.gain)} (predicted)")
    print_line(console, "")
    print_line(console, f"objective (predicted): {ratio(report.objective)} AR over the regimes")
    print_line(
        console, f"{report.evaluations} evaluations in {report.seconds:.0f} s, every one token-forced on the stand-in"
    )
    if report.plot is not None:
        print_line(console, f"waterfalls before and after (predicted): {report.plot}")
    print_line(console, "to measure instead, this is missing:")
    for line in report.missing:
        print_line(console, f"  - {line}")


def _requests(regime: int) -> str:
    return f"{regime} request{'s' * (regime != 1)}"


def _figures(evaluation: Evaluation) -> Sequence[str]:
    score = evaluation.score
    if score is None:
        raise ValueError(f"attempt {evaluation.attempt} was confirmed without a score")
    speeds = (score.ar_tokens_per_second, score.stock_tokens_per_second, score.tokens_per_second)
    figures = [decimal(speed, 1) for speed in speeds]
    return (
        *figures,
        ratio(score.ratio_ar),
        ratio(score.ratio_stock),
        decimal(score.tau, 2),
        forced_long(evaluation.forced),
    )


def _show_gaps(console: Console, row: PlannedRegime) -> None:
    before, after = ({gap.kind.name: gap for gap in report.gaps} for report in (row.before, row.after))
    falls = [dict(report.fall) for report in (row.before, row.after)]
    now = f"stock {1e6 * row.before.per_token:.1f} us a token, best {1e6 * row.after.per_token:.1f}"
    print_line(console, f"gaps at {_requests(row.regime)} (predicted): {now}", style="bold")
    table = new_table()
    table.add_column("gap")
    for name in ("stock: gain", "left, us", "best: gain", "left, us"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, kind in KINDS.items():
        cells: list[str] = []
        for gaps, fall in zip((before, after), falls, strict=True):
            cells += [ratio(gaps[name].gain), f"{1e6 * fall[name]:.1f}"] if name in gaps else ["-", "-"]
        table.add_row(kind.words, *cells)
    print_table(console, table)
    print_line(console, "")
