"""Real processes: kill -9 in the middle of a write, a reader beside a writer, two writers."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import archive_records as make
import pytest

from archive.store import Archive
from space.errors import ArchiveError

HERE = Path(__file__).parent
PROMPTS = 40  # 360 samples a transaction, so that a kill often lands inside one


@contextmanager
def writer(path):
    search = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    process = subprocess.Popen(
        [sys.executable, str(HERE / "archive_writer.py"), str(path), str(PROMPTS)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": search},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_kill_9_loses_at_most_what_was_in_flight(tmp_path):
    path = tmp_path / "archive.sqlite"
    said = 0
    for delay in (0.0, 0.013, 0.021, 0.034):
        with writer(path) as process:
            for _ in range(3):
                said = int(process.stdout.readline())
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            said = max([said, *map(int, process.stdout.read().split())])
        with Archive.open(path) as archive:
            history = archive.history("run-a")
            numbers = [attempt.number for attempt, _ in history]
            assert numbers == list(range(1, len(numbers) + 1))
            assert said <= len(numbers) <= said + 1
            assert all(len(evaluation.samples) == 9 * PROMPTS for _, evaluation in history)
            assert archive.rows("SELECT count(*) FROM sample")[0][0] == 9 * PROMPTS * len(numbers)
            assert archive.mark_stale("run-a") <= 1
            assert archive.rows("PRAGMA integrity_check")[0][0] == "ok"


def test_a_reader_works_while_a_run_writes(tmp_path):
    path = tmp_path / "archive.sqlite"
    with writer(path) as process:
        said = int(process.stdout.readline())
        with Archive.open(path, read_only=True) as archive:
            seen = [len(archive.history("run-a"))]
            while seen[-1] < seen[0] + 3:
                said = int(process.stdout.readline())
                history = archive.history("run-a")
                assert len(history) >= said
                assert all(len(evaluation.samples) == 9 * PROMPTS for _, evaluation in history)
                seen.append(len(history))
            with pytest.raises(ArchiveError, match="readonly"):
                archive.begin_run(make.run("run-b"))
        assert process.poll() is None


def test_a_second_writer_learns_who_writes_and_gets_in_after_a_kill(tmp_path):
    path = tmp_path / "archive.sqlite"
    with writer(path) as process:
        process.stdout.readline()
        message = rf"in use by process {process.pid}, running since \d{{4}}-\d\d-\d\dT.*\n.*`archive list`"
        with pytest.raises(ArchiveError, match=message) as refused:
            Archive.open(path)
        assert len(str(refused.value).splitlines()) <= 3
        assert re.search(r"Ctrl-C", str(refused.value))
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        with Archive.open(path) as archive:
            assert archive.history("run-a")


def test_two_writers_in_one_process_exclude_each_other(tmp_path):
    path = tmp_path / "archive.sqlite"
    with Archive.open(path):
        with pytest.raises(ArchiveError, match=f"in use by process {os.getpid()}"):
            Archive.open(path)
        with pytest.raises(ArchiveError, match="in use by process"):
            Archive.open(path)  # the refused one did not break the lock
    Archive.open(path).close()


def test_a_lock_whose_holder_has_not_said_its_name_yet(tmp_path):
    path = tmp_path / "archive.sqlite"
    with Archive.open(path):
        (tmp_path / "archive.sqlite.lock").write_text('{"pid": 1')
        with pytest.raises(ArchiveError, match="in use by another process that has just started"):
            Archive.open(path)


FORKS = """
import os, sys, time
from pathlib import Path
from archive.store import Archive

with Archive.open(Path(sys.argv[1])):
    if os.fork() == 0:  # the child speaks, so that it has run before anybody is killed
        sys.stdout.write(f"{os.getpid()}\\n")
        sys.stdout.flush()
    time.sleep(60)
"""


def test_a_forked_child_that_outlives_a_killed_run_does_not_keep_the_lock(tmp_path):
    path = tmp_path / "archive.sqlite"
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    child = int(process.stdout.readline())
    try:
        with pytest.raises(ArchiveError, match=f"in use by process {process.pid}"):
            Archive.open(path)
        process.kill()
        process.wait()
        Archive.open(path).close()
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()
