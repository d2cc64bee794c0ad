"""Opening the file: what is checked before an archive is believed, and how a connection is set up."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import structlog

from archive import schema
from archive.elites import GRID_VERSION, axes
from archive.faults import damaged, database_fault, os_fault
from archive.lock import WriterLock
from space.canonical import canonical_json
from space.errors import ArchiveError

log = structlog.get_logger(__name__)

BUSY_SECONDS = 10.0


def _connect(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    db.row_factory = sqlite3.Row
    return db


@contextmanager
def _closed_on_failure(path: Path, db: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        db.close()
        raise database_fault(path, error) from error
    except ArchiveError:
        db.close()
        raise


def _refuse_foreign_or_newer(path: Path, db: sqlite3.Connection) -> None:
    if schema.is_foreign(db):
        raise ArchiveError(
            f"{path} is an SQLite database of another program, not an archive; it was left as it is\nName another file."
        )
    found = schema.version_of(db)
    if found > schema.SCHEMA_VERSION:
        raise ArchiveError(
            f"the archive {path} has schema version {found}; this program knows versions up to "
            f"{schema.SCHEMA_VERSION}; it was left as it is\n"
            "Update SpecPilot, or move the file away to start a new one."
        )


def connect_reader(path: Path) -> sqlite3.Connection:
    """Opens an existing archive without the right to change it; works while a run writes."""
    if not path.is_file():
        raise ArchiveError(f"there is no archive at {path}\nThe first run makes it: python run.py --deployment NAME")
    # Beside a WAL file lie two more files. Where they are absent and cannot be made, nobody else is writing either.
    alone = not path.with_name(path.name + "-wal").exists() and not os.access(path.parent, os.W_OK)
    try:
        db = _connect(path, "mode=ro&immutable=1" if alone else "mode=ro")
    except sqlite3.Error as error:
        raise database_fault(path, error) from error
    with _closed_on_failure(path, db):
        _refuse_foreign_or_newer(path, db)
        found = schema.version_of(db)
        if found == 0:
            raise ArchiveError(f"the archive {path} is empty: no run has been recorded in it yet")
        if found < schema.SCHEMA_VERSION:
            return _upgraded_copy(db)
    return db


def _upgraded_copy(old: sqlite3.Connection) -> sqlite3.Connection:
    """An archive of an older version as this one reads it: a copy in memory. The next run upgrades the file itself."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.row_factory = sqlite3.Row
    old.backup(db)
    old.close()
    schema.migrate(db)
    db.execute("PRAGMA query_only = ON")
    return db


def connect_writer(path: Path) -> tuple[sqlite3.Connection, WriterLock]:
    """Opens or creates an archive for writing, with the writer's lock held; upgrades an older schema."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise os_fault(path.parent, error) from error
    lock = WriterLock(path)
    try:
        return _prepared(path), lock
    except ArchiveError:
        lock.release()
        raise


def _prepared(path: Path) -> sqlite3.Connection:
    try:
        db = _connect(path, "mode=rwc")
    except sqlite3.Error as error:
        raise database_fault(path, error) from error
    with _closed_on_failure(path, db):
        _refuse_foreign_or_newer(path, db)
        problem = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
        if problem != "ok":
            raise damaged(path, problem)
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise ArchiveError(
                f"the archive {path} cannot be kept there: the file system has no shared memory (journal mode {mode})\n"
                "Choose a folder on a local disk."
            )
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        found = schema.version_of(db)
        schema.migrate(db)
        if 0 < found < schema.SCHEMA_VERSION:
            log.info("archive upgraded", path=str(path), from_version=found, to_version=schema.SCHEMA_VERSION)
        _record_grid(path, db)
    return db


def _record_grid(path: Path, db: sqlite3.Connection) -> None:
    """Writes down the edges of this grid version once; other edges under the same version are refused."""
    known = db.execute("SELECT axes FROM descriptor_space WHERE version = ?", (GRID_VERSION,)).fetchone()
    here = canonical_json(axes())
    if known is None:
        db.execute("INSERT INTO descriptor_space (version, axes) VALUES (?, ?)", (GRID_VERSION, here))
    elif known["axes"] != here:
        raise ArchiveError(
            f"the archive {path} was written with other edges of descriptor grid {GRID_VERSION}\n"
            "A grid whose edges change needs a new version number."
        )
