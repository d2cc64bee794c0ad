"""What drafters have accepted, as a table: `bench --acceptance`."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from autotune.terminal.console import new_table, print_line, print_table
from autotune.terminal.words import decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLine:
    """One drafter on one set of prompts.

    `tau` counts tokens committed a step, bonus token included; `by_position` the share of steps in which all drafts up
    to position 1, 2, ... held, None where no step drafted so far.
    """

    prompts: str
    count: int
    drafter: str
    tokens: int
    tau: float
    by_position: tuple[float | None, ...]


def show_acceptance(console: Console, deployment: str, max_tokens: int, lines: Sequence[AcceptanceLine]) -> None:
    """Prints the table, in the order given."""
    table = new_table(f"{deployment}: tokens a step, and % of drafts that hold, by position")
    for name in ("prompts", "drafter"):
        table.add_column(name, no_wrap=True)
    positions = max((len(line.by_position) for line in lines), default=0)
    for name in ("tokens", "tau", *map(str, range(1, positions + 1))):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        shares = (decimal(None if share is None else 100 * share, 0) for share in line.by_position)
        table.add_row(f"{line.prompts} ({line.count})", line.drafter, str(line.tokens), decimal(line.tau, 2), *shares)
    print_table(console, table)
    counted = "position k: of the steps that drafted k tokens, those in which all k held; tau includes the bonus token"
    print_line(console, f"greedy, at most {max_tokens} new tokens a prompt; {counted}", style="dim")
