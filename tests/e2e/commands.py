"""Runs the program in real processes, in a folder with a tiny deployment that is its home as well."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from tiny_deployment import write_deployment

ROOT = Path(__file__).resolve().parents[2]
CALM = Path(__file__).parent / "calm_run.py"
_LINE = re.compile(r" +(\d+) (ok|unstable|mismatch|runtime) ")


class Place:
    """A working folder: tiny.toml, prompts, archive and exports."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.toml = write_deployment(folder, checkpoint)

    @property
    def archive(self) -> Path:
        return self.folder / "archive.sqlite"

    @property
    def export(self) -> Path:
        return self.folder / "exports" / "tiny.json"

    def start(self, *words: str, program: Path = CALM, **options) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(program), *words],
            cwd=self.folder,
            env={**os.environ, "SPECPILOT_HOME": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def call(self, *words: str, program: Path = CALM, **options) -> tuple[int, str, str]:
        with self.start(*words, program=program, **options) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def tune(self, *words: str) -> tuple[int, str, str]:
        return self.call("--deployment", "tiny.toml", *words)

    def attempts(self) -> list[tuple[str, int, str]]:
        """Run, number and state of every attempt, in the order in which they were begun."""
        with sqlite3.connect(self.archive) as db:
            return db.execute("SELECT run_id, number, state FROM attempt ORDER BY id").fetchall()

    def finished(self) -> list[int]:
        with sqlite3.connect(self.archive) as db:
            query = "SELECT a.number FROM evaluation e JOIN attempt a ON a.id = e.attempt_id ORDER BY e.attempt_id"
            return [number for (number,) in db.execute(query)]


def printed_numbers(text: str) -> list[int]:
    """The numbers of the evaluations that a run printed."""
    return [int(match[1]) for line in text.splitlines() if (match := _LINE.match(line))]


def read_until_evaluation(process: subprocess.Popen, number: int) -> str:
    """Reads a run's output up to the line of an evaluation."""
    text = ""
    for line in process.stdout:
        text += line
        if printed_numbers(line) == [number]:
            return text
    raise AssertionError(f"the run ended before evaluation {number}: {text}{process.stderr.read()}")


def read_rest(process: subprocess.Popen) -> tuple[str, str]:
    """What a run still prints on both streams until it ends; communicate() would miss lines that were read ahead."""
    out = process.stdout.read()
    err = process.stderr.read()
    process.wait()
    return out, err


def is_polite(code: int, err: str) -> bool:
    """A refusal: exit code 2, one to three lines on standard error, no traceback."""
    return code == 2 and err.startswith("error: ") and 1 <= err.count("\n") <= 3 and "Traceback" not in err


def interrupt(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
