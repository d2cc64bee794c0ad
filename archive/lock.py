"""One writer at a time: an exclusive lock on a file beside the archive. Readers need no lock.

The kernel drops the lock when the process ends, however it ends; the file stays and means nothing by itself.
A forked child would share the lock and keep it after its parent was killed, so it closes its copy at once.
"""

import contextlib
import fcntl
import json
import os
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from archive.faults import os_fault
from space.errors import ArchiveError


def _holder(file: TextIO) -> str:
    """Who holds the lock, in words; the holder may be between locking and writing its name."""
    file.seek(0)
    try:
        owner = json.loads(file.read())
        return f"process {owner['pid']}, running since {owner['started']}"
    except (ValueError, KeyError, TypeError):
        return "another process that has just started"


class WriterLock:
    """Holds the lock from construction until `release`. ArchiveError when another run has it."""

    def __init__(self, archive: Path) -> None:
        self.path = archive.with_name(archive.name + ".lock")
        try:
            self._file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115 -- open is what holding means
        except OSError as error:
            raise os_fault(self.path, error) from error
        with self._closed_on_failure():
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ArchiveError(
                    f"the archive {archive} is in use by {_holder(self._file)}\n"
                    "Wait for that run or stop it (Ctrl-C there). Meanwhile `archive list`, `show` and `top` work."
                ) from error
            self._file.truncate(0)
            self._file.write(json.dumps({"pid": os.getpid(), "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}))
            self._file.flush()
        _held.add(self)

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._drop()
            raise os_fault(self.path, error) from error
        except ArchiveError:
            self._drop()
            raise

    def _drop(self) -> None:
        # What a full disk left in the buffer fails again on closing; the descriptor is closed all the same.
        with contextlib.suppress(OSError):
            self._file.close()

    def release(self) -> None:
        """Lets the next writer in. The file stays: removing it could give two processes a lock on two files."""
        self._drop()


_held: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in _held:
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)
