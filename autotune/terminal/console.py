"""The console: colours and a live bar on a terminal, plain ASCII lines of any length otherwise."""

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console as Console
from rich.table import Table
from rich.text import Text

from space.errors import SpecPilotError

_PIPE_WIDTH = 100


def make_console(stream: TextIO | None = None) -> Console:
    """Returns a console on `stream` (default: standard output). A pipe gets a fixed width and no colour."""
    stream = stream or sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def print_line(console: Console, text: str | Text, style: str = "") -> None:
    """Prints one line and never folds it: a log keeps one record a line."""
    # The style is the text's own: given to print(), it would also colour the live bar below.
    console.print(Text(text, style) if isinstance(text, str) else text, soft_wrap=True)


def notice(console: Console, text: str) -> None:
    """Prints a remark, such as what a download or an interrupt is about to do."""
    print_line(console, text, style="yellow")


def complain(error: SpecPilotError) -> None:
    """Prints an error on standard error: its message, at most three lines."""
    console = make_console(sys.stderr)
    lines = str(error).splitlines() or [type(error).__name__]
    print_line(console, Text.assemble(("error: ", "bold red"), lines[0]))
    for line in lines[1:3]:
        print_line(console, f"  {line}")


def print_facts(console: Console, facts: Sequence[tuple[str, str]]) -> None:
    """Prints names and values, one pair a line."""
    for name, value in facts:
        print_line(console, Text.assemble((f"  {name:<18} ", "cyan"), value))


def new_table(title: str | None = None) -> Table:
    """An empty table in the style of the project."""
    return Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )


def print_table(console: Console, table: Table) -> None:
    """Prints a table without the trailing blanks that pad it to its width when nobody looks at colours."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print_line(console, line.rstrip())
