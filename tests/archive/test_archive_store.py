import math
import random
import sqlite3

import archive_records as make
import pytest
from store_conformance import StoreConformance

from archive import schema
from archive.store import Archive
from space.errors import ArchiveError
from space.outcome import Outcome


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home with ?#% signs" / "archive.sqlite"


class TestSqlite(StoreConformance):
    @pytest.fixture
    def store(self, path):
        with Archive.open(path) as archive:
            yield archive


class TestSqliteReopened(StoreConformance):
    """The same suite on an archive that is closed and opened again before every read of the history."""

    @pytest.fixture
    def store(self, path):
        class Reopening:
            def __getattr__(self, name):
                def call(*values):
                    with Archive.open(path) as archive:
                        return getattr(archive, name)(*values)

                return call

        return Reopening()


def test_a_generator_state_survives(path):
    rng = random.Random(3)
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        make.record(archive, make.attempt(1, rng_state=repr(rng.getstate())), make.ok(1))
    with Archive.open(path, read_only=True) as archive:
        assert archive.history("run-a")[0][0].rng_state == repr(rng.getstate())


def test_connection_settings(path):
    with Archive.open(path) as archive:
        settings = [archive.rows(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "foreign_keys")]
        assert settings == ["wal", 1, 1]
        assert archive.rows("PRAGMA user_version")[0][0] == schema.SCHEMA_VERSION


@pytest.mark.parametrize(
    "evaluation",
    [
        make.ok(1, seconds=math.nan),
        make.ok(1, score=make.score(math.inf)),
        make.ok(1, score=make.score(0.0)),
        make.ok(1, stage="sarch"),
        make.ok(1, samples=(*make.samples(), *make.samples(seconds=math.nan))),
    ],
)
def test_a_refused_record_leaves_nothing_behind(path, evaluation):
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        archive.begin_attempt(make.attempt(1))
        with pytest.raises(ArchiveError, match="refused a record"):
            archive.finish_attempt(evaluation)
        assert archive.rows("SELECT count(*) FROM sample")[0][0] == 0
        assert archive.history("run-a") == []
        archive.finish_attempt(make.ok(1))


def test_numbers_too_large_for_the_file_are_refused(path):
    with Archive.open(path) as archive, pytest.raises(ArchiveError, match="too large"):
        archive.begin_run(make.run(seed=2**80))


def test_an_attempt_of_an_unknown_run_is_refused(path):
    with Archive.open(path) as archive, pytest.raises(ArchiveError, match="FOREIGN KEY"):
        archive.begin_attempt(make.attempt(1, "nobody"))


@pytest.mark.parametrize("change", ["UPDATE {} SET rowid = rowid", "DELETE FROM {}"])
@pytest.mark.parametrize("table", ["meta", "run", "attempt", "evaluation", "sample", "descriptor_space"])
def test_records_cannot_be_changed_even_by_hand(path, table, change):
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        make.record(archive, make.attempt(1), make.ok(1))
    db = sqlite3.connect(path)
    assert db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(change.format(table))
    db.close()


def test_an_attempt_in_flight_changes_nothing_but_its_state(path):
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        archive.begin_attempt(make.attempt(1))
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("UPDATE attempt SET genome = '{}', state = 'done'")
    db.close()


def test_knobs_that_are_not_those_of_the_genome_are_noticed(path):
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        make.record(archive, make.attempt(1), make.ok(1))
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER attempt_same")
    db.execute("UPDATE attempt SET genome = replace(genome, 'ngram\"', 'suffix\"')")
    db.commit()
    db.close()
    with Archive.open(path) as archive, pytest.raises(ArchiveError, match="not those of genome"):
        archive.history("run-a")


def test_a_migration_that_fails_leaves_the_version_before_it(tmp_path):
    db = sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)
    good = ("CREATE TABLE extra (x)",)
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        schema.migrate(db, (*schema.MIGRATIONS, good, ("CREATE TABLE more (x)", "INSERT INTO nowhere VALUES (1)")))
    assert schema.version_of(db) == schema.SCHEMA_VERSION + 1
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('extra', 'more')").fetchone()[0] == 1
    schema.migrate(db, (*schema.MIGRATIONS, good, ("CREATE TABLE more (x)",)))
    assert schema.version_of(db) == schema.SCHEMA_VERSION + 2
    db.close()


def test_every_outcome_can_be_stored(path):
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        for number, outcome in enumerate(Outcome, 1):
            evaluation = make.ok(number) if outcome is Outcome.OK else make.failed(number, outcome=outcome)
            make.record(archive, make.attempt(number), evaluation)
        assert [evaluation.outcome for _, evaluation in archive.history("run-a")] == list(Outcome)
