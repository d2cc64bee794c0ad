"""Tables of the commands that look at results: archive list, show and top, bench, verify, doctor."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from archive.base import Forced, Sample
from autotune.base import Trial
from autotune.terminal.console import new_table, print_line, print_table
from autotune.terminal.summary import SystemRow, system_table
from autotune.terminal.words import (
    OUTCOME_STYLES,
    decimal,
    duration,
    forced_long,
    knob_changes,
    one_line,
    percent,
    ratio,
    score_cells,
)
from space.genome import Genome
from space.knobs import KnobSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run in `archive list`. `started` is ready to print; `best_ratio_ar` is None before the first ok."""

    id: str
    deployment: str
    started: str
    evaluations: int
    ok: int
    best_ratio_ar: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLine:
    """One evaluation in `archive top`, with the deployment that it belongs to."""

    deployment: str
    trial: Trial


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


def show_runs(console: Console, archive: Path, runs: Sequence[RunLine]) -> None:
    """Prints `archive list`, newest run as given."""
    if not runs:
        print_line(console, f"{archive} holds no run; start one with: python run.py --deployment cpu-smollm2")
        return
    table = new_table(str(archive))
    for name in ("run", "deployment", "started"):
        table.add_column(name, no_wrap=True)
    for name in ("evaluations", "ok", "best x AR"):
        table.add_column(name, justify="right")
    for run in runs:
        counts = (str(run.evaluations), str(run.ok), ratio(run.best_ratio_ar))
        table.add_row(run.id, run.deployment, run.started, *counts)
    print_table(console, table)


def show_top(console: Console, lines: Sequence[TopLine], space: KnobSpace, stock: Genome) -> None:
    """Prints `archive top`, best first as given; the knobs are told against stock."""
    if not lines:
        print_line(console, "no evaluation is ok yet")
        return
    table = new_table()
    for name in ("genome", "deployment"):
        table.add_column(name, no_wrap=True)
    for name in ("x AR", "x stock", "spread", "tau", "forced"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("change against stock", overflow="fold")
    for line in lines:
        evaluation, genome = line.trial.evaluation, line.trial.attempt.genome
        figures = score_cells(evaluation.score, evaluation.forced)
        table.add_row(genome.id, line.deployment, *figures, knob_changes(space, genome, stock))
    print_table(console, table)


def show_trial(console: Console, trials: Sequence[Trial]) -> None:
    """Prints `archive show`: one genome, and each of its evaluations with the raw samples."""
    genome = trials[0].attempt.genome
    print_line(console, f"genome {genome.id}", style="bold")
    for name, value in genome.items:
        print_line(console, f"  {name:<18} {value}")
    for trial in trials:
        _show_evaluation(console, trial)


def _show_evaluation(console: Console, trial: Trial) -> None:
    attempt, evaluation = trial.attempt, trial.evaluation
    print_line(console, "")
    print_line(
        console,
        Text.assemble(
            (f"#{attempt.number} of run {attempt.run_id}: ", "bold"),
            (str(evaluation.outcome), OUTCOME_STYLES.get(evaluation.outcome, "red")),
            f", stage {evaluation.stage}, {duration(evaluation.seconds)}",
        ),
    )
    facts = [("operator", attempt.operator), ("parents", " ".join(attempt.parents) or "none")]
    if evaluation.reason:
        facts.append(("reason", one_line(evaluation.reason)))
    if evaluation.score is not None:
        score = evaluation.score
        facts += [
            ("speed", f"{ratio(score.ratio_ar)} AR, {ratio(score.ratio_stock)} stock, spread {percent(score.spread)}"),
            ("tokens a second", f"{score.tokens_per_second:.1f} (AR {score.ar_tokens_per_second:.1f})"),
            ("tau", decimal(score.tau, 2)),
        ]
    if evaluation.forced is not None:
        facts.append(("forced tokens", forced_long(evaluation.forced)))
        if evaluation.forced.first_mismatch:
            facts.append(("first mismatch", one_line(evaluation.forced.first_mismatch)))
    for name, value in facts:
        print_line(console, f"  {name:<18} {value}")
    if evaluation.samples:
        print_line(console, "")
        _show_samples(console, evaluation.samples)


def _show_samples(console: Console, samples: Sequence[Sample]) -> None:
    table = new_table()
    for name in ("prompt", "role"):
        table.add_column(name, no_wrap=True)
    for name in ("repeat", "tokens", "seconds", "steps", "drafted", "accepted", "draft s", "verify s"):
        table.add_column(name, justify="right")
    for sample in samples:
        table.add_row(
            sample.prompt_id,
            sample.role,
            str(sample.repeat),
            str(sample.tokens),
            decimal(sample.seconds, 3),
            str(sample.steps),
            str(sample.drafted),
            str(sample.accepted),
            decimal(sample.draft_seconds, 3),
            decimal(sample.verify_seconds, 3),
        )
    print_table(console, table)


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
