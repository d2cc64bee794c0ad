"""Bad files, full disks, folders without rights: a message of at most three lines, and nothing lost."""

import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import archive_records as make
import pytest

from archive import connection, schema
from archive.store import Archive
from space.errors import ArchiveError

ROOT = Path(__file__).parents[2]


@contextmanager
def refused(match):
    with pytest.raises(ArchiveError, match=match) as caught:
        yield
    assert len(str(caught.value).splitlines()) <= 3


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "archive.sqlite"
    with Archive.open(file) as archive:
        archive.begin_run(make.run())
        for number in range(1, 4):
            make.record(archive, make.attempt(number), make.ok(number))
    return file


def edit(path, statement):
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_archive_is_left_as_it_is(path, read_only):
    edit(path, "PRAGMA user_version = 9")
    before = path.read_bytes()
    with refused(
        rf"schema version 9; this program knows versions up to {schema.SCHEMA_VERSION}(.|\n)*Update SpecPilot"
    ):
        Archive.open(path, read_only=read_only)
    assert path.read_bytes() == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database(tmp_path, read_only):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary " * 500)
    with refused("notes.txt is not an archive"):
        Archive.open(path, read_only=read_only)
    assert path.read_text() == "dear diary " * 500


def test_a_database_of_another_program(tmp_path):
    path = tmp_path / "music.sqlite"
    edit(path, "CREATE TABLE song (name TEXT)")
    before = path.read_bytes()
    for read_only in (False, True):
        with refused("database of another program"):
            Archive.open(path, read_only=read_only)
    assert path.read_bytes() == before


def test_a_damaged_archive(path):
    content = bytearray(path.read_bytes())
    for page in range(3, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    with refused(r"is damaged (.|\n)*\.recover"):
        Archive.open(path)
    with Archive.open(path, read_only=True) as archive, refused("is damaged"):
        archive.history("run-a")
    assert path.read_bytes() == content
    with refused("is damaged"):  # and the refused writer let go of the lock
        Archive.open(path)


def test_a_truncated_archive(path):
    path.write_bytes(path.read_bytes()[: 5 * 4096])
    with refused("is damaged"):
        Archive.open(path)


def test_an_empty_file_is_a_new_archive_to_a_writer_only(tmp_path):
    path = tmp_path / "archive.sqlite"
    path.touch()
    with refused("is empty"):
        Archive.open(path, read_only=True)
    Archive.open(path).close()
    Archive.open(path, read_only=True).close()


def test_no_archive_to_read(tmp_path):
    with refused("no archive at .*nowhere.sqlite\nThe first run makes it"):
        Archive.open(tmp_path / "nowhere.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_where_a_file_should_be(tmp_path):
    (tmp_path / "archive.sqlite").mkdir()
    with refused("cannot open the archive"):
        Archive.open(tmp_path / "archive.sqlite")
    (tmp_path / "file").touch()
    with refused("cannot use .*file"):
        Archive.open(tmp_path / "file" / "archive.sqlite")


def test_a_folder_without_the_right_to_write(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("builtins.open", denied)
    with refused("cannot write .*: Permission denied\nChoose a folder"):
        Archive.open(tmp_path / "archive.sqlite")


def test_an_archive_on_a_read_only_file_system_can_be_read(path, monkeypatch):
    monkeypatch.setattr(connection.os, "access", lambda *_: False)
    with Archive.open(path, read_only=True) as archive:
        assert len(archive.history("run-a")) == 3


def test_other_edges_under_the_same_grid_version_are_refused(path, monkeypatch):
    monkeypatch.setattr(connection, "axes", lambda: {"regime": [1, 2]})
    with refused("other edges of descriptor grid 1"):
        Archive.open(path)


def test_a_full_database_loses_nothing(path):
    with Archive.open(path) as archive:
        pages = archive.rows("PRAGMA page_count")[0][0]
        archive.rows(f"PRAGMA max_page_count = {pages + 2}")
        archive.begin_attempt(make.attempt(4))
        big = make.ok(4, samples=make.samples(tuple(f"seen-{i}" for i in range(100))))
        with refused("no space left"):
            archive.finish_attempt(big)
        assert [attempt.number for attempt, _ in archive.history("run-a")] == [1, 2, 3]
        archive.rows("PRAGMA max_page_count = 100000")
        archive.finish_attempt(big)
        assert archive.history("run-a")[-1][1] == big


FULL_DISK = """
import resource, sys
from pathlib import Path
import archive_records as make
from archive.store import Archive
from space.errors import ArchiveError

path = Path(sys.argv[1])
with Archive.open(path) as archive:
    size = Path(f"{path}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, resource.RLIM_INFINITY))
    number = archive.next_number("run-a")
    try:
        while True:
            make.record(archive, make.attempt(number), make.ok(number))
            number += 1
    except ArchiveError as error:
        sys.stdout.write(f"{number}|{error}")
"""


def test_a_disk_that_fills_up_under_a_real_process_loses_nothing(path):
    """A limit on the file size stands for the disk; SQLite then sees a failing write."""
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "archive")])},
    )
    number, message = result.stdout.split("|")
    assert "no space left, or a failing disk" in message
    with Archive.open(path) as archive:
        archive.mark_stale("run-a")
        stored = archive.history("run-a")
        assert [attempt.number for attempt, _ in stored] == list(range(1, int(number)))
        assert archive.rows("PRAGMA integrity_check")[0][0] == "ok"
        make.record(archive, make.attempt(int(number)), make.ok(int(number)))


def test_no_space_for_the_lock_file(tmp_path):
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    program = "import sys; from pathlib import Path; from archive.store import Archive; Archive.open(Path(sys.argv[1]))"
    result = subprocess.run(
        [sys.executable, "-B", "-c", program, str(tmp_path / "archive.sqlite")],
        capture_output=True,
        text=True,
        preexec_fn=limited,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "ArchiveError: no space left to write" in result.stderr


def test_another_program_that_holds_the_database(path, monkeypatch):
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
    with Archive.open(path) as archive:
        shell = sqlite3.connect(path, isolation_level=None)
        shell.execute("BEGIN IMMEDIATE")
        with refused("is locked by another program"):
            archive.begin_attempt(make.attempt(4))
        shell.close()
        archive.begin_attempt(make.attempt(4))
