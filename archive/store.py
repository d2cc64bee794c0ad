"""The archive as a file: SQLite in WAL mode, one writer, any number of readers, every write a whole transaction."""

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from archive import rows
from archive.base import Attempt, Basis, Evaluation, RunRecord, Sample
from archive.connection import connect_reader, connect_writer
from archive.elites import cell_of
from archive.faults import database_fault
from archive.lock import WriterLock
from space.errors import ArchiveError
from space.outcome import Outcome
from space.patch import Patch

_FINISHED = """SELECT a.*, e.* FROM attempt a JOIN evaluation e ON e.attempt_id = a.id
               WHERE a.run_id = ? {more} ORDER BY a.number"""
_SAMPLES = """SELECT s.*, a.number FROM sample s JOIN attempt a ON a.id = s.attempt_id
              WHERE a.run_id = ? {more} ORDER BY a.number, s.id"""


class Archive:
    """An open archive. Use `Archive.open`, as a context manager; every error is an ArchiveError."""

    def __init__(self, path: Path, db: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.path = path
        self._db = db
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> "Archive":
        """Opens the file. A writer creates folder and file, upgrades an older schema and holds the writer's lock.

        A reader needs an existing archive, changes nothing, and works while a run writes.
        """
        if read_only:
            return cls(path, connect_reader(path), None)
        db, lock = connect_writer(path)
        return cls(path, db, lock)

    def close(self) -> None:
        """Closes the file and lets the next writer in."""
        self._db.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything inside is stored, or nothing: also on Ctrl-C and on a full disk."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            raise database_fault(self.path, error) from error
        finally:
            if self._db.in_transaction:
                self._db.rollback()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Every read inside sees one state of the archive, whatever a writer does meanwhile. May be nested."""
        if self._db.in_transaction:
            yield
            return
        self.rows("BEGIN")
        try:
            yield
        finally:
            self._db.rollback()

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """Runs one SELECT, for read models. Values are bound, never put into the text."""
        try:
            return self._db.execute(query, values).fetchall()
        except (sqlite3.Error, OverflowError) as error:
            raise database_fault(self.path, error) from error

    def begin_run(self, run: RunRecord) -> None:
        """Records a run. The same record again changes nothing; another one of the same id is refused."""
        known = self.rows("SELECT * FROM run WHERE id = ?", run.id)
        if known and rows.read_run(known[0]) != run:
            raise ArchiveError(f"the archive {self.path} has another run {run.id}; give the new run another id")
        if not known:
            with self._transaction():
                self._db.execute(rows.insert("run", rows.RUN_COLUMNS), rows.run_row(run))

    def latest_run(self, deployment_name: str, basis: Basis = Basis.MEASURED) -> RunRecord | None:
        """The run of that deployment and basis that was begun last, or None."""
        query = "SELECT * FROM run WHERE deployment_name = ? AND basis = ? ORDER BY seq DESC LIMIT 1"
        found = self.rows(query, deployment_name, basis.value)
        return rows.read_run(found[0]) if found else None

    def next_number(self, run_id: str) -> int:
        """The number for the next attempt: one more than the highest that is in flight or done; 1 in a new run."""
        query = "SELECT coalesce(max(number), 0) + 1 FROM attempt WHERE run_id = ? AND state <> 'stale'"
        return int(self.rows(query, run_id)[0][0])

    def begin_attempt(self, attempt: Attempt) -> None:
        """Records an attempt as in flight, in its own transaction. The number of a stale attempt may be used again."""
        if self._live(attempt.run_id, attempt.number):
            raise ArchiveError(
                f"attempt {attempt.run_id}/{attempt.number} is in the archive already; "
                f"the next free number is {self.next_number(attempt.run_id)}"
            )
        with self._transaction():
            for patch in attempt.genome.patches:
                if not self.rows("SELECT 1 FROM patch WHERE id = ?", patch.id):
                    self._db.execute(rows.insert("patch", rows.PATCH_COLUMNS), rows.patch_row(patch))
            self._db.execute(rows.insert("attempt", rows.ATTEMPT_COLUMNS), rows.attempt_row(attempt))

    def patch(self, id: str) -> Patch:
        """The patch of a content address. ArchiveError when it is not there, or is not what its address says."""
        found = self.rows("SELECT base, diff FROM patch WHERE id = ?", id)
        if not found:
            raise ArchiveError(f"the archive {self.path} has no patch {id}")
        patch = Patch(base=found[0]["base"], diff=found[0]["diff"])
        if patch.id != id:
            raise ArchiveError(f"the stored text of patch {id} is not what its address says: the archive was edited")
        return patch

    def attempt_of(self, row: sqlite3.Row) -> Attempt:
        """The record of a row of table attempt, its patches looked up."""
        return rows.read_attempt(row, [self.patch(id) for id in rows.patch_ids(row)])

    def finish_attempt(self, evaluation: Evaluation) -> None:
        """Records the evaluation with its samples, in one transaction; the attempt is done.

        The same evaluation again changes nothing. Another evaluation of a finished attempt is refused, and so is an
        ok one that has no score or whose descriptor lies outside the grid.
        """
        name = f"{evaluation.run_id}/{evaluation.attempt}"
        live = self._live(evaluation.run_id, evaluation.attempt)
        if live is None:
            raise ArchiveError(f"attempt {name} is not in flight: it was never begun, or it is stale")
        if live["state"] == "done":
            if self._read(evaluation.run_id, "AND a.id = ?", live["id"])[0][1] != evaluation:
                raise ArchiveError(f"attempt {name} has finished before, with another evaluation")
            return
        _check(name, evaluation)
        samples = [rows.sample_row(live["id"], sample) for sample in evaluation.samples]
        with self._transaction():
            self._db.execute(
                rows.insert("evaluation", rows.EVALUATION_COLUMNS), rows.evaluation_row(live["id"], evaluation)
            )
            self._db.executemany(rows.insert("sample", ("attempt_id", *rows.SAMPLE_COLUMNS)), samples)
            self._db.execute("UPDATE attempt SET state = 'done' WHERE id = ?", (live["id"],))

    def mark_stale(self, run_id: str) -> int:
        """Gives up the attempts that a killed session left in flight; returns how many. Call it before resuming."""
        with self._transaction():
            query = "UPDATE attempt SET state = 'stale' WHERE run_id = ? AND state = 'in_flight'"
            return self._db.execute(query, (run_id,)).rowcount

    def history(self, run_id: str) -> list[tuple[Attempt, Evaluation]]:
        """The finished attempts of a run with their samples, in order of attempt number, both stages."""
        return self._read(run_id, "")

    def finished(self, run_id: str, number: int) -> tuple[Attempt, Evaluation]:
        """One finished attempt with its samples. ArchiveError when it has not finished."""
        found = self._read(run_id, "AND a.number = ?", number)
        if not found:
            raise ArchiveError(f"attempt {run_id}/{number} has not finished")
        return found[0]

    def _live(self, run_id: str, number: int) -> sqlite3.Row | None:
        query = "SELECT id, state FROM attempt WHERE run_id = ? AND number = ? AND state <> 'stale'"
        found = self.rows(query, run_id, number)
        return found[0] if found else None

    def _read(self, run_id: str, more: str, *values: int) -> list[tuple[Attempt, Evaluation]]:
        with self.snapshot():
            found = self.rows(_FINISHED.format(more=more), run_id, *values)
            timed = self.rows(_SAMPLES.format(more=more), run_id, *values)
        samples: dict[int, list[Sample]] = {
            number: [rows.read_sample(row) for row in group]
            for number, group in itertools.groupby(timed, key=lambda row: int(row["number"]))
        }
        return [(self.attempt_of(row), rows.read_evaluation(row, samples.get(row["number"], ()))) for row in found]


def _check(name: str, evaluation: Evaluation) -> None:
    ok = evaluation.outcome is Outcome.OK
    if ok != (evaluation.score is not None):
        raise ArchiveError(
            f"attempt {name}: outcome {evaluation.outcome.value} {'needs' if ok else 'excludes'} a score"
        )
    if ok and evaluation.stage == "search" and evaluation.descriptor is None:
        raise ArchiveError(f"attempt {name}: outcome ok at stage search needs a descriptor")
    if evaluation.descriptor is not None:
        cell_of(evaluation.descriptor)
