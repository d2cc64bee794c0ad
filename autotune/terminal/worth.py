"""What each choice of the winner contributes, one knob at a time."""

from collections.abc import Sequence

from rich.console import Console

from autotune.ablation import Worth
from autotune.terminal.console import new_table, print_line, print_table
from autotune.terminal.words import percent


def show_worths(console: Console, worths: Sequence[Worth]) -> None:
    """Prints the table; nothing where nothing was measured."""
    if not worths:
        return
    table = new_table("what each choice is worth (search prompts)")
    for name in ("knob", "chosen", "stock"):
        table.add_column(name)
    for name in ("faster by", "noise"):
        table.add_column(name, justify="right", no_wrap=True)
    for worth in worths:
        row = (worth.name, str(worth.value), str(worth.default), percent(worth.gain), f"+- {percent(worth.noise)}")
        table.add_row(*row, style="" if abs(worth.gain) > worth.noise else "dim")
    print_table(console, table)
    print_line(console, "")
