"""What each command of the front door does: open what it needs, call the room that does it, show the result."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from archive.base import Basis
from archive.evidence import build_export
from archive.export import write_export
from archive.queries import list_runs, show, top
from archive.store import Archive
from autotune import check, doctor, planning
from autotune import tune as tuning
from autotune.acceptance import acceptance
from autotune.base import as_trials
from autotune.measured import measure_machine
from autotune.options import (
    AcceptanceOptions,
    ArchiveListOptions,
    ArchiveShowOptions,
    ArchiveTopOptions,
    BenchOptions,
    DoctorOptions,
    ExportOptions,
    ReplayOptions,
    TuneOptions,
    VerifyOptions,
)
from autotune.ranking import best
from autotune.session import Baselines, deployment_prompts, full_space
from autotune.terminal import make_console, notice, show_checks, show_detail, show_runs, show_top
from engine.weights.source import home_folder
from space.benchmarks import benchmark_path
from space.deployment import Deployment, find_deployment
from space.errors import ArchiveError
from space.planned import planned_space, planned_stock


@contextmanager
def _reading(path: Path | None) -> Iterator[Archive]:
    path = path or tuning.default_archive()
    if not path.exists():
        raise ArchiveError(f"there is no archive at {path}\nA run makes it: python run.py --deployment cpu-smollm2")
    with Archive.open(path, read_only=True) as archive:
        yield archive


_BENCHMARK_SEARCH = 5


def tuned_deployment(options: TuneOptions) -> Deployment:
    """The deployment that was named, on a benchmark's prompts where one was: five to search on, five to confirm."""
    deployment, path = find_deployment(options.deployment), benchmark_path(options.benchmark, options.benchmark_dir)
    if path is None:
        return deployment
    prompts = {"prompts": str(path.resolve())}
    counts = {"search_per_group": _BENCHMARK_SEARCH, "confirm_per_group": _BENCHMARK_SEARCH}
    return deployment.model_copy(update={"workload": deployment.workload.model_copy(update={**prompts, **counts})})


def tune(options: TuneOptions) -> int:
    """The main job: measured where the device is, planned where it is not."""
    deployment = tuned_deployment(options)
    if deployment.hardware.device == "cuda":
        return planning.plan(make_console(), options, deployment)
    return tuning.tune(make_console(), options, deployment)


def export(options: ExportOptions) -> int:
    """Writes the confirmed best of a deployment's latest run."""
    deployment = find_deployment(options.deployment)
    out = options.out or tuning.default_export(deployment.name)
    _, split = deployment_prompts(deployment)
    with _reading(options.archive) as archive:
        run = archive.latest_run(deployment.name)
        if run is None:
            raise ArchiveError(
                f"the archive has no run of {deployment.name}\n"
                f"Tune it first: python run.py --deployment {options.deployment}"
            )
        history = archive.history(run.id)
        winner = best(as_trials(history), full_space(), "confirm")
        document = build_export(run, history, split.confirm, winner.attempt.genome.id if winner else None)
    write_export(out, document)
    notice(make_console(), f"exported {document.genome.id} for the {options.to} to {out}")
    return 0


def archive_list(options: ArchiveListOptions) -> int:
    """The runs, newest first."""
    with _reading(options.archive) as archive:
        show_runs(make_console(), archive.path, list_runs(archive))
    return 0


def archive_show(options: ArchiveShowOptions) -> int:
    """A run, a genome or an attempt."""
    with _reading(options.archive) as archive:
        show_detail(make_console(), show(archive, options.id))
    return 0


def archive_top(options: ArchiveTopOptions) -> int:
    """The fastest genomes."""
    # A planning run has knobs of its own: its changes are told against its own stock.
    space = planned_space() if options.predicted else full_space()
    basis = Basis.PREDICTED if options.predicted else Basis.MEASURED
    stock = planned_stock(space) if options.predicted else Baselines.of(space).stock
    with _reading(options.archive) as archive:
        show_top(make_console(), top(archive, options.deployment, options.limit, basis), space, stock)
    return 0


def bench(options: BenchOptions) -> int:
    """A configuration beside AR and stock."""
    path = benchmark_path(options.benchmark, options.benchmark_dir)
    return check.bench(make_console(), options.config, path, unsafe=options.unsafe)


def bench_acceptance(options: AcceptanceOptions) -> int:
    """What every drafter has accepted."""
    return acceptance(make_console(), options)


def bench_replay(options: ReplayOptions) -> int:
    """Chains and trees at equal node budgets, replayed."""
    from autotune.replay.compare import compare  # late: it loads torch, which no other command needs here

    return compare(make_console(), options)


def verify(options: VerifyOptions) -> int:
    """Token forcing of a configuration."""
    path = benchmark_path(options.benchmark, options.benchmark_dir)
    return check.verify(make_console(), options.config, path, unsafe=options.unsafe)


def run_doctor(options: DoctorOptions) -> int:
    """What is here and what is missing; 1 when something is."""
    console = make_console()
    found = doctor.checks()
    show_checks(console, found)
    if options.measure:
        with_model = doctor.embedded_model_cached()
        measured = measure_machine(home_folder(), lambda text: notice(console, text), with_model=with_model)
        found += doctor.measured_checks(measured)
        show_checks(console, doctor.measured_checks(measured))
    return 0 if all(entry.ok for entry in found) else 1
