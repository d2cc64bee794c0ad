import math
import random
import sqlite3

import archive_records as make
import pytest
from store_conformance import StoreConformance

from archive import rows, schema
from archive.queries import show
from archive.store import Archive
from space.errors import ArchiveError
from space.outcome import Outcome
from space.patch import Patch

PATCH = Patch(base="b0", diff="--- a/engine/loop.py\n+++ b/engine/loop.py\n@@ -1 +1 @@\n-a\n+\u00e9\n")


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
@pytest.mark.parametrize("table", ["meta", "run", "attempt", "evaluation", "sample", "descriptor_space", "patch"])
def test_records_cannot_be_changed_even_by_hand(path, table, change):
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        make.record(archive, make.attempt(1, genome=make.genome().patched([PATCH])), make.ok(1))
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
    with Archive.open(path) as archive, pytest.raises(ArchiveError, match="knobs or patches are not those of genome"):
        archive.history("run-a")


def test_a_migration_that_fails_leaves_the_version_before_it(tmp_path):
    db = sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)
    good = ("CREATE TABLE extra (x)",)
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        schema.migrate(db, (*schema.MIGRATIONS, good, ("CREATE TABLE more (x)", "INSERT INTO nowhere VALUES (1)")))
    assert schema.version_of(db) == len(schema.MIGRATIONS) + 1
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('extra', 'more')").fetchone()[0] == 1
    schema.migrate(db, (*schema.MIGRATIONS, good, ("CREATE TABLE more (x)",)))
    assert schema.version_of(db) == len(schema.MIGRATIONS) + 2
    db.close()


def test_every_outcome_can_be_stored(path):
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        for number, outcome in enumerate(Outcome, 1):
            evaluation = make.ok(number) if outcome is Outcome.OK else make.failed(number, outcome=outcome)
            make.record(archive, make.attempt(number), evaluation)
        assert [evaluation.outcome for _, evaluation in archive.history("run-a")] == list(Outcome)


def test_patches_are_kept_once_by_content_address(path):
    other = Patch(base="b1", diff=PATCH.diff)
    pairs = [
        (make.attempt(1, genome=make.genome().patched([PATCH, other])), make.ok(1, sandbox="bubblewrap")),
        (make.attempt(2, genome=make.genome().patched([other])), make.failed(2, sandbox="rlimits")),
        (make.attempt(3), make.ok(3, sandbox="none")),
    ]
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        for attempt, evaluation in pairs:
            make.record(archive, attempt, evaluation)
        assert archive.rows("SELECT count(*) FROM patch")[0][0] == 2
    with Archive.open(path, read_only=True) as archive:
        assert archive.history("run-a") == pairs
        assert archive.patch(other.id) == other
        assert show(archive, "run-a/1").attempt == pairs[0][0]
        with pytest.raises(ArchiveError, match="has no patch 0123"):
            archive.patch("0123")


def test_a_patch_text_that_was_edited_is_noticed(path):
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        make.record(archive, make.attempt(1, genome=make.genome().patched([PATCH])), make.ok(1))
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER patch_same")
    db.execute("UPDATE patch SET diff = replace(diff, '+', '-')")
    db.commit()
    db.close()
    with Archive.open(path, read_only=True) as archive, pytest.raises(ArchiveError, match="not what its address says"):
        archive.history("run-a")


def first_version(path):
    """An archive as the first schema version wrote it, with one run and one evaluation."""
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path, isolation_level=None)
    schema.migrate(db, schema.MIGRATIONS[:1])
    insert_known(db, "run", rows.RUN_COLUMNS, rows.run_row(make.run()))
    insert_known(db, "attempt", rows.ATTEMPT_COLUMNS, rows.attempt_row(make.attempt(1)))
    insert_known(db, "evaluation", rows.EVALUATION_COLUMNS, rows.evaluation_row(1, make.failed(1)))
    db.execute("UPDATE attempt SET state = 'done'")
    db.close()


def insert_known(db, table, columns, values):
    """Inserts what the table has columns for."""
    known = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    row = {column: value for column, value in zip(columns, values, strict=True) if column in known}
    db.execute(rows.insert(table, list(row)), list(row.values()))


def test_an_archive_of_the_first_version_is_read_as_it_is_and_upgraded_by_the_next_run(path):
    first_version(path)
    before = path.read_bytes()
    with Archive.open(path, read_only=True) as archive:
        assert archive.history("run-a") == [(make.attempt(1), make.failed(1))]
        with pytest.raises(ArchiveError, match="readonly"):
            archive.begin_attempt(make.attempt(2))
    assert path.read_bytes() == before
    with Archive.open(path) as archive:
        assert archive.history("run-a") == [(make.attempt(1), make.failed(1))]
        make.record(archive, make.attempt(2, genome=make.genome().patched([PATCH])), make.ok(2))
        assert archive.rows("PRAGMA user_version")[0][0] == schema.SCHEMA_VERSION
