"""What replay found, for a person: `bench --replay`."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from autotune.terminal.console import new_table, print_table
from autotune.terminal.words import decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLine:
    """One policy on one set of prompts: tau at each node budget."""

    prompts: str
    policy: str
    taus: tuple[float, ...]


def show_replay(console: Console, deployment: str, budgets: Sequence[int], lines: Sequence[ReplayLine]) -> None:
    """Prints tau by policy and node budget, one block for each set of prompts."""
    table = new_table(f"{deployment}: tau by most drafted nodes a step")
    table.add_column("prompts")
    table.add_column("draft")
    for budget in budgets:
        table.add_column(str(budget), justify="right")
    before = ""
    for line in lines:
        name = line.prompts if line.prompts != before else ""
        table.add_row(name, line.policy, *(decimal(tau, 2) for tau in line.taus))
        before = line.prompts
    print_table(console, table)
