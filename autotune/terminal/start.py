"""The start block: what is about to be tuned, where, and for how long."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autotune.terminal.console import print_line
from autotune.terminal.words import duration
from space.knobs import KnobSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBlock:
    """What a run begins with. `finished` evaluations were found in the archive and are continued."""

    version: str
    deployment: str
    signature: str
    model: str
    hardware: str
    seconds: float
    max_evals: int
    archive: Path
    seed: int
    finished: int = 0


def show_knobs(console: Console, space: KnobSpace) -> None:
    """Prints what a run would choose from: one line a knob."""
    for knob in space.knobs:
        when = f"; when {knob.when.name} is {' or '.join(map(str, knob.when.values))}" if knob.when else ""
        line = Text.assemble((f"  {knob.name:<17}", "cyan"), f"{knob.domain.describe()}, default {knob.default}{when}")
        print_line(console, line)
        print_line(console, f"  {'':<17}{knob.help}", style="dim")


def show_start(console: Console, block: StartBlock) -> None:
    """Prints the block."""
    resumed = f" (continues after {block.finished} evaluations; --fresh starts anew)" if block.finished else ""
    print_line(console, f"SpecPilot {block.version}", style="bold")
    for name, value in (
        ("deployment", f"{block.deployment} ({block.signature})"),
        ("model", block.model),
        ("hardware", block.hardware),
        ("budget", f"{duration(block.seconds)}, {block.max_evals} evaluations"),
        ("archive", f"{block.archive}{resumed}"),
        ("seed", str(block.seed)),
    ):
        print_line(console, Text.assemble((f"  {name:<12}", "cyan"), value))
    print_line(console, "")
