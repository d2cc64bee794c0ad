"""What a person sees. The only place of the project that writes to the terminal."""

from autotune.terminal.accepted import AcceptanceLine, show_acceptance
from autotune.terminal.checked import (
    BenchReport,
    Check,
    GroupLine,
    VerifyReport,
    show_bench,
    show_checks,
    show_verify,
)
from autotune.terminal.console import Console, complain, make_console, notice
from autotune.terminal.live import BudgetView, TerminalObserver
from autotune.terminal.planned import PlannedRegime, PlanReport, show_plan
from autotune.terminal.remembered import show_detail, show_runs, show_top
from autotune.terminal.replayed import ReplayLine, show_replay
from autotune.terminal.start import StartBlock, show_knobs, show_start
from autotune.terminal.summary import Summary, SystemRow, show_summary

__all__ = [
    "AcceptanceLine",
    "BenchReport",
    "BudgetView",
    "Check",
    "Console",
    "GroupLine",
    "PlanReport",
    "PlannedRegime",
    "ReplayLine",
    "StartBlock",
    "Summary",
    "SystemRow",
    "TerminalObserver",
    "VerifyReport",
    "complain",
    "make_console",
    "notice",
    "show_acceptance",
    "show_bench",
    "show_checks",
    "show_detail",
    "show_knobs",
    "show_plan",
    "show_replay",
    "show_runs",
    "show_start",
    "show_summary",
    "show_top",
    "show_verify",
]
