"""What the archive remembers, for a person: `archive list`, `archive top` and `archive show`."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from archive.base import Evaluation, Sample
from archive.queries import AttemptDetail, GenomeDetail, RunDetail, RunSummary, TopEntry
from archive.summary import RoleSummary
from autotune.terminal.console import new_table, print_facts, print_line, print_table
from autotune.terminal.words import (
    OUTCOME_STYLES,
    decimal,
    duration,
    forced_long,
    knob_changes,
    one_line,
    outcome_counts,
    percent,
    ratio,
    score_cells,
)
from space.genome import Genome
from space.knobs import KnobSpace


def show_runs(console: Console, archive: Path, runs: Sequence[RunSummary]) -> None:
    """Prints `archive list`, in the order given."""
    if not runs:
        print_line(console, f"{archive} holds no run; start one with: python run.py --deployment cpu-smollm2")
        return
    table = new_table(str(archive))
    for name in ("run", "deployment", "basis", "started"):
        table.add_column(name, no_wrap=True)
    for name in ("time", "evals ok", "x AR", "confirmed"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        counts = (duration(run.seconds), f"{run.ok}/{run.finished}")
        ratios = (ratio(run.best_ratio_ar), ratio(run.confirmed_ratio_ar))
        table.add_row(run.id, run.deployment_name, run.basis.value, run.started[:16], *counts, *ratios)
    print_table(console, table)


def show_top(console: Console, entries: Sequence[TopEntry], space: KnobSpace, stock: Genome) -> None:
    """Prints `archive top`, in the order given; the knobs are told against stock."""
    if not entries:
        print_line(console, "no evaluation is ok yet")
        return
    table = new_table()
    for name in ("genome", "deployment", "stage"):
        table.add_column(name, no_wrap=True)
    for name in ("x AR", "x stock", "spread", "tau", "forced"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("change against stock", overflow="fold")
    for entry in entries:
        names = (entry.genome.id, entry.deployment_name, entry.evaluation.stage)
        figures = score_cells(entry.evaluation.score, entry.evaluation.forced)
        table.add_row(*names, *figures, knob_changes(space, entry.genome, stock))
    print_table(console, table)


def show_detail(console: Console, detail: RunDetail | GenomeDetail | AttemptDetail) -> None:
    """Prints `archive show`: a run, a genome with its attempts, or one attempt with its raw samples."""
    match detail:
        case RunDetail():
            _show_run(console, detail)
        case GenomeDetail():
            _show_genome(console, detail.genome)
            for attempt in detail.attempts:
                _show_attempt(console, attempt)
        case AttemptDetail():
            _show_genome(console, detail.attempt.genome)
            _show_attempt(console, detail)
            if detail.evaluation is not None and detail.evaluation.samples:
                print_line(console, "")
                _show_samples(console, detail.evaluation.samples)


def _show_run(console: Console, detail: RunDetail) -> None:
    run, where = detail.summary, detail.summary.environment
    print_line(console, f"run {run.id}", style="bold")
    print_facts(
        console,
        [
            ("deployment", run.deployment_name),
            ("basis", run.basis.value),
            ("content", detail.deployment),
            ("started", run.started),
            ("seed", str(run.seed)),
            ("machine", f"{where.host}: {where.cpu}, {where.cores} cores, {where.memory_gib:.1f} GiB"),
            ("software", f"{where.system}, Python {where.python}, torch {where.torch}, code {where.code}"),
            ("best", f"{ratio(run.best_ratio_ar)} AR, confirmed {ratio(run.confirmed_ratio_ar)}"),
            ("time", duration(run.seconds)),
        ],
    )
    print_line(console, Text.assemble("  evaluations        ", outcome_counts(detail.outcomes)))


def _show_genome(console: Console, genome: Genome) -> None:
    print_line(console, f"genome {genome.id}", style="bold")
    facts = [(name, str(value)) for name, value in genome.items]
    print_facts(console, [*facts, *(("patch", f"{patch.id}: {', '.join(patch.files)}") for patch in genome.patches)])


def _show_attempt(console: Console, detail: AttemptDetail) -> None:
    attempt, evaluation = detail.attempt, detail.evaluation
    ending = str(evaluation.outcome) if evaluation else detail.state.replace("_", " ")
    style = OUTCOME_STYLES.get(evaluation.outcome, "red") if evaluation else "dim"
    print_line(console, "")
    print_line(console, Text.assemble((f"{attempt.run_id}/{attempt.number}: ", "bold"), (ending, style)))
    facts = [
        ("deployment", detail.deployment_name),
        ("started", detail.started),
        ("operator", attempt.operator),
        ("parents", " ".join(attempt.parents) or "none"),
    ]
    print_facts(console, facts + (_facts(evaluation) if evaluation else []))
    if detail.roles:
        print_line(console, "")
        _show_roles(console, detail.roles)


def _facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    facts = [("stage", f"{evaluation.stage}, {duration(evaluation.seconds)}")]
    if evaluation.reason:
        facts.append(("reason", one_line(evaluation.reason)))
    if evaluation.sandbox is not None:
        facts.append(("sandbox", evaluation.sandbox))
    if evaluation.score is not None:
        score = evaluation.score
        speed = f"{ratio(score.ratio_ar)} AR, {ratio(score.ratio_stock)} stock, spread {percent(score.spread)}"
        facts += [("speed", speed), ("tau", decimal(score.tau, 2))]
    if evaluation.forced is not None:
        facts.append(("forced tokens", forced_long(evaluation.forced)))
        if evaluation.forced.first_mismatch:
            facts.append(("first mismatch", one_line(evaluation.forced.first_mismatch)))
    return facts


def _show_roles(console: Console, roles: Sequence[RoleSummary]) -> None:
    table = new_table()
    table.add_column("role")
    for name in ("tok/s", "spread", "tau", "tokens", "seconds", "draft s", "verify s", "drafted", "accepted"):
        table.add_column(name, justify="right")
    for role in roles:
        table.add_row(
            role.role,
            decimal(role.tokens_per_second, 1),
            percent(role.spread),
            decimal(role.tau, 2),
            str(role.tokens),
            decimal(role.seconds, 2),
            decimal(role.draft_seconds, 2),
            decimal(role.verify_seconds, 2),
            str(role.drafted),
            str(role.accepted),
        )
    print_table(console, table)


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
