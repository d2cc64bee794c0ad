"""What went wrong below the archive, in the user's words: one ArchiveError for each way in which storage fails."""

import errno
import sqlite3
from pathlib import Path

from space.errors import ArchiveError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


def os_fault(path: Path, error: OSError) -> ArchiveError:
    """Explains why a file cannot be written or read."""
    if error.errno in _FULL:
        return ArchiveError(
            f"no space left to write {path} ({error.strerror}); nothing that was stored before is lost\n"
            "Free some space, then give the same command again."
        )
    if error.errno in _UNWRITABLE:
        return ArchiveError(f"cannot write {path}: {error.strerror}\nChoose a folder that this user may write to.")
    return ArchiveError(f"cannot use {path}: {error.strerror}")


def database_fault(path: Path, error: sqlite3.Error | OverflowError) -> ArchiveError:
    """Explains an error of SQLite; its name decides, because its text differs between versions."""
    name = str(getattr(error, "sqlite_errorname", None))
    if name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR"):
        return ArchiveError(
            f"no space left, or a failing disk: cannot write the archive {path} ({error})\n"
            "Nothing that was stored before is lost. Free some space, then give the same command again."
        )
    if name == "SQLITE_NOTADB":
        return ArchiveError(
            f"{path} is not an archive (not an SQLite database); it was left as it is\n"
            "Move it away to start a new archive, or name another one."
        )
    if name.startswith("SQLITE_CORRUPT"):
        return damaged(path, str(error))
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return ArchiveError(
            f"cannot open the archive {path} ({error})\nChoose a folder that exists and that this user may write to."
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
        return ArchiveError(
            f"the archive {path} is locked by another program ({error})\nClose that program and try again."
        )
    return ArchiveError(f"the archive {path} refused a record: {error}")


def damaged(path: Path, detail: str) -> ArchiveError:
    """The file is an archive, and parts of it cannot be read."""
    first = detail.splitlines()[0] if detail else "unreadable"
    return ArchiveError(
        f"the archive {path} is damaged ({first}); it was left as it is\n"
        f"Copy what can be read with: sqlite3 {path} .recover | sqlite3 rescued.sqlite\n"
        "Or move it away: the next run starts a new archive."
    )
