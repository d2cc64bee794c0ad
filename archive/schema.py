"""The tables of the archive and the migrations that lead to them.

Records are never changed or deleted: triggers refuse it, also for somebody at an SQL prompt. The one exception is
the state of an attempt, which may leave `in_flight` once. A stale attempt keeps its row, and its number may be used
again: so a resumed run counts on where the finished attempts end.
"""

import sqlite3
from collections.abc import Sequence

APPLICATION_ID = 0x53504C54  # "SPLT": tells an archive from any other SQLite file

_NOW = "(strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))"

_TABLES = (
    f"CREATE TABLE meta (created TEXT NOT NULL DEFAULT {_NOW})",
    "INSERT INTO meta DEFAULT VALUES",
    "CREATE TABLE descriptor_space (version INTEGER PRIMARY KEY, axes TEXT NOT NULL)",
    f"""CREATE TABLE run (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE CHECK (id <> '' AND instr(id, '/') = 0),
        deployment_name TEXT NOT NULL,
        deployment TEXT NOT NULL,
        space TEXT NOT NULL,
        prompts TEXT NOT NULL,
        seed INTEGER NOT NULL,
        environment TEXT NOT NULL,
        started TEXT NOT NULL DEFAULT {_NOW}
    )""",
    "CREATE INDEX run_by_name ON run (deployment_name, seq)",
    f"""CREATE TABLE attempt (
        id INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL REFERENCES run (id),
        number INTEGER NOT NULL,
        genome_id TEXT NOT NULL,
        genome TEXT NOT NULL,
        parents TEXT NOT NULL,
        operator TEXT NOT NULL,
        rng_state TEXT NOT NULL,
        started TEXT NOT NULL DEFAULT {_NOW},
        state TEXT NOT NULL DEFAULT 'in_flight' CHECK (state IN ('in_flight', 'done', 'stale'))
    )""",
    "CREATE UNIQUE INDEX attempt_once ON attempt (run_id, number) WHERE state <> 'stale'",
    "CREATE INDEX attempt_by_run ON attempt (run_id, number)",
    "CREATE INDEX attempt_by_genome ON attempt (genome_id)",
    f"""CREATE TABLE evaluation (
        attempt_id INTEGER PRIMARY KEY REFERENCES attempt (id),
        stage TEXT NOT NULL CHECK (stage IN ('search', 'confirm')),
        outcome TEXT NOT NULL,
        reason TEXT NOT NULL,
        seconds REAL NOT NULL,
        finished TEXT NOT NULL DEFAULT {_NOW},
        forced_tokens INTEGER, forced_exact INTEGER, forced_near_ties INTEGER, first_mismatch TEXT,
        ratio_ar REAL CHECK (ratio_ar > 0 AND ratio_ar < 1e12),
        ratio_stock REAL CHECK (ratio_stock > 0 AND ratio_stock < 1e12),
        spread REAL CHECK (spread >= 0 AND spread < 1e12),
        tau REAL, tokens_per_second REAL, ar_tokens_per_second REAL, stock_tokens_per_second REAL,
        regime INTEGER, gap TEXT, width REAL,
        CHECK ((outcome = 'ok') = (ratio_ar IS NOT NULL)),
        CHECK ((ratio_ar IS NULL) = (ratio_stock IS NULL) AND (ratio_ar IS NULL) = (spread IS NULL)
           AND (ratio_ar IS NULL) = (tau IS NULL) AND (ratio_ar IS NULL) = (tokens_per_second IS NULL)
           AND (ratio_ar IS NULL) = (ar_tokens_per_second IS NULL)
           AND (ratio_ar IS NULL) = (stock_tokens_per_second IS NULL)),
        CHECK ((regime IS NULL) = (gap IS NULL) AND (regime IS NULL) = (width IS NULL))
    )""",
    """CREATE TABLE sample (
        id INTEGER PRIMARY KEY,
        attempt_id INTEGER NOT NULL REFERENCES evaluation (attempt_id),
        prompt_id TEXT NOT NULL,
        role TEXT NOT NULL CHECK (role IN ('ar', 'stock', 'candidate')),
        repeat INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        seconds REAL NOT NULL,
        steps INTEGER NOT NULL,
        drafted INTEGER NOT NULL,
        accepted INTEGER NOT NULL,
        draft_seconds REAL NOT NULL,
        verify_seconds REAL NOT NULL
    )""",
    "CREATE INDEX sample_by_attempt ON sample (attempt_id)",
)


def _append_only(table: str) -> tuple[str, str]:
    refuse = "BEGIN SELECT RAISE(ABORT, 'the archive is append-only'); END"
    return (
        f"CREATE TRIGGER {table}_keep BEFORE DELETE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_same BEFORE UPDATE ON {table} {refuse}",
    )


_PATCHES = (
    f"""CREATE TABLE patch (
        id TEXT PRIMARY KEY,
        base TEXT NOT NULL,
        diff TEXT NOT NULL,
        stored TEXT NOT NULL DEFAULT {_NOW}
    )""",
    *_append_only("patch"),
    "ALTER TABLE evaluation ADD COLUMN sandbox TEXT",  # NULL in records of before there was a sandbox
)

_TRIGGERS = (
    *(statement for table in ("meta", "run", "evaluation", "sample") for statement in _append_only(table)),
    *_append_only("descriptor_space"),
    _append_only("attempt")[0],
    """CREATE TRIGGER attempt_same BEFORE UPDATE ON attempt
       WHEN old.state <> 'in_flight' OR new.state = 'in_flight' OR new.id <> old.id OR new.run_id <> old.run_id
         OR new.number <> old.number OR new.genome_id <> old.genome_id OR new.genome <> old.genome
         OR new.parents <> old.parents OR new.operator <> old.operator OR new.rng_state <> old.rng_state
         OR new.started <> old.started
       BEGIN SELECT RAISE(ABORT, 'the archive is append-only'); END""",
)

Migration = tuple[str, ...]
MIGRATIONS: tuple[Migration, ...] = (
    (f"PRAGMA application_id = {APPLICATION_ID}", *_TABLES, *_TRIGGERS),
    (
        """ALTER TABLE run ADD COLUMN basis TEXT NOT NULL DEFAULT 'measured'
           CHECK (basis IN ('measured', 'predicted'))""",
    ),
    _PATCHES,
)
"""Entry i leads from schema version i to i + 1. Entries are never edited after a release, only added."""

SCHEMA_VERSION = len(MIGRATIONS)


def version_of(db: sqlite3.Connection) -> int:
    """The schema version of an open database; 0 for a fresh one."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def is_foreign(db: sqlite3.Connection) -> bool:
    """True for a database that has content and was not made by this project."""
    marked = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    return not marked and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Brings the database to the newest version, each step in one transaction. `db` is in autocommit mode.

    A step that fails (sqlite3.Error) leaves the database at the version before it.
    """
    before = version_of(db)
    for version in range(before, len(migrations)):
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in migrations[version]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.rollback()
