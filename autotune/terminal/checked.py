"""What a check found, for a person: `bench`, `verify` and `doctor`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from archive.base import Forced
from autotune.terminal.console import new_table, print_line, print_table
from autotune.terminal.summary import SystemRow, system_table
from autotune.terminal.words import decimal, one_line, ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """One group of prompts in `bench`: ratios of seconds, and tokens a step."""

    group: str
    ratio_ar: float
    ratio_stock: float
    tau: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """What `bench` measured."""

    config: Path
    rows: tuple[SystemRow, ...]
    groups: tuple[GroupLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What `verify` forced, on how many prompts that the search never saw."""

    config: Path
    prompts: int
    forced: Forced


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `doctor`: what was looked at and, when it is not fine, what to do."""

    name: str
    value: str
    ok: bool = True
    remedy: str = ""


def show_bench(console: Console, report: BenchReport) -> None:
    """Prints `bench`: the systems side by side, then the configuration by group of prompts."""
    print_table(console, system_table(str(report.config), report.rows))
    print_line(console, "")
    table = new_table()
    table.add_column("group")
    for name in ("x AR", "x stock", "tau"):
        table.add_column(name, justify="right")
    for line in report.groups:
        table.add_row(line.group, ratio(line.ratio_ar), ratio(line.ratio_stock), decimal(line.tau, 2))
    print_table(console, table)


def show_verify(console: Console, report: VerifyReport) -> None:
    """Prints `verify`: one line, and the first mismatch if there is one."""
    forced = report.forced
    passed = forced.exact + forced.near_ties == forced.tokens
    verdict = ("equal to stock", "bold green") if passed else ("NOT equal to stock", "bold red")
    counts = f"{forced.exact + forced.near_ties} of {forced.tokens} tokens forced on {report.prompts} prompts"
    print_line(console, Text.assemble(f"{report.config}: {counts} that the search never saw: ", verdict))
    if forced.near_ties:
        print_line(console, f"  {forced.near_ties} of them near-ties, within the noise of stock against itself")
    if forced.first_mismatch:
        print_line(console, f"  first mismatch: {one_line(forced.first_mismatch)}")


def show_checks(console: Console, checks: Sequence[Check]) -> None:
    """Prints `doctor`: one line a check, and under it what to do when it is not fine."""
    for check in checks:
        mark = ("ok      ", "green") if check.ok else ("missing ", "bold yellow")
        print_line(console, Text.assemble(mark, (f"{check.name:<12} ", "cyan"), check.value))
        if not check.ok:
            print_line(console, f"        {check.remedy}")
