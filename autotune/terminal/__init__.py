"""What a person sees. The only place of the project that writes to the terminal."""

from autotune.terminal.console import complain, make_console, notice
from autotune.terminal.live import BudgetView, TerminalObserver
from autotune.terminal.start import StartBlock, show_start
from autotune.terminal.summary import Summary, SystemRow, show_summary
from autotune.terminal.tables import (
    BenchReport,
    Check,
    GroupLine,
    RunLine,
    TopLine,
    VerifyReport,
    show_bench,
    show_checks,
    show_runs,
    show_top,
    show_trial,
    show_verify,
)

__all__ = [
    "BenchReport",
    "BudgetView",
    "Check",
    "GroupLine",
    "RunLine",
    "StartBlock",
    "Summary",
    "SystemRow",
    "TerminalObserver",
    "TopLine",
    "VerifyReport",
    "complain",
    "make_console",
    "notice",
    "show_bench",
    "show_checks",
    "show_runs",
    "show_start",
    "show_summary",
    "show_top",
    "show_trial",
    "show_verify",
]
