"""The end of a run: AR, stock and best side by side, how the evaluations ended, and what to do with the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.base import Forced
from autotune.ablation import Worth
from autotune.terminal.console import new_table, print_line, print_table
from autotune.terminal.words import decimal, duration, forced_long, knob_list, outcome_counts, percent, ratio
from autotune.terminal.worth import show_worths
from space.genome import Genome
from space.outcome import Outcome

_SLOWER = "stock was faster than the best that was found: give the search more time (--budget), or a quieter machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRow:
    """One system of a comparison. What was not measured is None and shown as a dash."""

    name: str
    tokens_per_second: float
    ratio_ar: float
    ratio_stock: float
    spread: float | None = None
    tau: float | None = None
    forced: Forced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The result of a run. When nothing is confirmed, `rows` is empty, the rest None, and `without` says why."""

    deployment: str
    seconds: float
    rows: tuple[SystemRow, ...]
    counts: Mapping[Outcome, int]
    best: Genome | None
    export: Path | None
    worths: tuple[Worth, ...] = ()
    without: str = ""


def system_table(title: str, rows: Sequence[SystemRow]) -> Table:
    """The table of systems; the last row is the one that the reader came for."""
    table = new_table(title)
    table.add_column("")
    for name in ("tok/s", "x AR", "x stock", "spread", "tau", "forced tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for index, row in enumerate(rows):
        table.add_row(
            row.name,
            decimal(row.tokens_per_second, 1),
            ratio(row.ratio_ar),
            ratio(row.ratio_stock),
            percent(row.spread),
            decimal(row.tau, 2),
            forced_long(row.forced),
            style="bold green" if index == len(rows) - 1 and len(rows) > 1 else "",
        )
    return table


def show_summary(console: Console, summary: Summary) -> None:
    """Prints the final table and what to do next."""
    print_line(console, "")
    if summary.rows:
        print_table(console, system_table(summary.deployment, summary.rows))
        print_line(console, "")
    if summary.rows and summary.rows[-1].ratio_stock < 1:
        print_line(console, Text(_SLOWER, style="yellow"))
    show_worths(console, summary.worths)
    total = f"evaluations: {sum(summary.counts.values())} in {duration(summary.seconds)}: "
    print_line(console, Text.assemble(total, outcome_counts(summary.counts)))
    if summary.best is None:
        print_line(console, summary.without)
        return
    print_line(console, f"best: {summary.best.id}  {knob_list(summary.best)}")
    if summary.export is not None:
        print_line(console, f"exported to {summary.export}; use it:")
        for command in ("verify", "bench"):
            print_line(console, Text(f"  python run.py {command} --config {summary.export}", style="cyan"))
