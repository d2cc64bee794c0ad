"""What each command of the front door does: open what it needs, call the room that does it, show the result."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from archive.evidence import build_export
from archive.export import write_export
from archive.queries import list_runs, show, top
from archive.store import Archive
from autotune import check, doctor
from autotune import tune as tuning
from autotune.acceptance import acceptance
from autotune.base import as_trials
from autotune.options import (
    AcceptanceOptions,
    ArchiveListOptions,
    ArchiveShowOptions,
    ArchiveTopOptions,
    BenchOptions,
    DoctorOptions,
    ExportOptions,
    TuneOptions,
    VerifyOptions,
)
from autotune.ranking import best
from autotune.session import Baselines, deployment_prompts, full_space
from autotune.terminal import make_console, notice, show_checks, show_detail, show_runs, show_top
from space.deployment import find_deployment
from space.errors import ArchiveError


@contextmanager
def _reading(path: Path | None) -> Iterator[Archive]:
    path = path or tuning.default_archive()
    if not path.exists():
        raise ArchiveError(f"there is no archive at {path}\nA run makes it: python run.py --deployment cpu-smollm2")
    with Archive.open(path, read_only=True) as archive:
        yield archive


def tune(options: TuneOptions) -> int:
    """The main job."""
    return tuning.tune(make_console(), options)


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
    space = full_space()
    with _reading(options.archive) as archive:
        show_top(make_console(), top(archive, options.deployment, options.limit), space, Baselines.of(space).stock)
    return 0


def bench(options: BenchOptions | AcceptanceOptions) -> int:
    """A configuration beside AR and stock, or what drafters have accepted."""
    if isinstance(options, AcceptanceOptions):
        return acceptance(make_console(), options)
    return check.bench(make_console(), options.config, unsafe=options.unsafe)


def verify(options: VerifyOptions) -> int:
    """Token forcing of a configuration."""
    return check.verify(make_console(), options.config, unsafe=options.unsafe)


def run_doctor(options: DoctorOptions) -> int:
    """What is here and what is missing; 1 when something is."""
    found = doctor.checks()
    show_checks(make_console(), found)
    return 0 if all(entry.ok for entry in found) else 1
