"""Predicted runs live beside measured ones and are never mixed with them; an archive of before stays readable."""

import json
import sqlite3
from dataclasses import asdict

import archive_records as make
import pytest

from archive import schema
from archive.base import Basis
from archive.evidence import build_export
from archive.queries import list_runs, show, top
from archive.store import Archive
from space.errors import ArchiveError


@pytest.fixture
def both(tmp_path):
    """A measured run, and a predicted one of the same deployment with a far better figure."""
    with Archive.open(tmp_path / "archive.sqlite") as archive:
        archive.begin_run(make.run())
        make.record(archive, make.attempt(1), make.ok(1))
        archive.begin_run(make.run("run-p", basis=Basis.PREDICTED))
        make.record(archive, make.attempt(1, "run-p"), make.ok(1, "run-p", ratio=50.0))
        yield archive


def test_a_basis_survives_and_does_not_mix(both):
    assert both.latest_run("cpu-smollm2").id == "run-a"
    assert both.latest_run("cpu-smollm2", Basis.PREDICTED).id == "run-p"
    assert {run.id: run.basis for run in list_runs(both)} == {"run-a": Basis.MEASURED, "run-p": Basis.PREDICTED}
    assert [entry.run_id for entry in top(both)] == ["run-a"]
    assert [entry.run_id for entry in top(both, "cpu-smollm2", basis=Basis.PREDICTED)] == ["run-p"]
    assert show(both, "run-p").summary.basis is Basis.PREDICTED


def test_a_deployment_that_was_only_planned_has_no_measured_top(tmp_path):
    with Archive.open(tmp_path / "archive.sqlite") as archive:
        archive.begin_run(make.run("run-p", deployment_name="gpu.b1", basis=Basis.PREDICTED))
        with pytest.raises(ArchiveError, match=r"the archive has no run of deployment 'gpu\.b1'"):
            top(archive, "gpu.b1")
        assert top(archive, "gpu.b1", basis=Basis.PREDICTED) == []


def test_a_predicted_run_is_not_exported(both):
    run = both.latest_run("cpu-smollm2", Basis.PREDICTED)
    with pytest.raises(ArchiveError, match="run run-p is predicted"):
        build_export(run, both.history("run-p"), make.CONFIRM_PROMPTS)


def test_the_basis_of_a_run_cannot_be_changed(both, tmp_path):
    with sqlite3.connect(tmp_path / "archive.sqlite") as db, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("UPDATE run SET basis = 'measured' WHERE id = 'run-p'")
    with sqlite3.connect(tmp_path / "archive.sqlite") as db, pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        db.execute(
            "INSERT INTO run (id, deployment_name, deployment, space, prompts, seed, environment, basis)"
            " VALUES ('x', 'd', '{}', '{}', 'p', 0, '{}', 'guessed')"
        )


def test_an_archive_of_before_is_upgraded_and_all_measured(tmp_path):
    path, run = tmp_path / "archive.sqlite", make.run()
    db = sqlite3.connect(path, isolation_level=None)
    schema.migrate(db, schema.MIGRATIONS[:1])
    db.execute(
        "INSERT INTO run (id, deployment_name, deployment, space, prompts, seed, environment) VALUES (?,?,?,?,?,?,?)",
        (
            run.id,
            run.deployment_name,
            run.deployment,
            run.space,
            run.prompts,
            run.seed,
            json.dumps(asdict(run.environment)),
        ),
    )
    db.close()
    with Archive.open(path) as archive:
        assert archive.latest_run("cpu-smollm2") == run
        make.record(archive, make.attempt(1), make.ok(1))
        assert [entry.run_id for entry in top(archive)] == ["run-a"]
    with Archive.open(path, read_only=True) as archive:
        assert list_runs(archive)[0].basis is Basis.MEASURED
