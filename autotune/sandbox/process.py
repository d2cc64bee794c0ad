"""A confined process: started, watched, and ended with everything that it started."""

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from autotune.log import logger
from autotune.sandbox.base import Breach, Confinement, Limits, Sandbox, SandboxResult, View
from autotune.sandbox.gpu import gpu_memory_of
from autotune.sandbox.launch import descendants, kill_below, process_table
from autotune.sandbox.visible import environment
from autotune.sandbox.watchdog import GpuMemory, Watchdog
from space.outcome import Outcome

_MARK = "SPECPILOT_CANDIDATE"
_GONE_WITHIN = 10.0
_SHOWN = 64 * 1024


class ConfinedProcess:
    """One candidate's process and everything below it.

    Start it from a thread that outlives it: Linux ends it with the thread that started it, so that nothing outlives a
    tuner that was killed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        confinement: Confinement,
        *,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: IO[bytes],
        gpu_memory: GpuMemory | None = gpu_memory_of,
    ) -> None:
        """`stderr`, and `stdout` unless it is a pipe, are files of the caller's: a survivor could hold up a pipe."""
        view, limits = confinement.view, confinement.limits
        self._mark = f"{_MARK}={secrets.token_hex(16)}"
        name, _, value = self._mark.partition("=")
        self._killing = threading.Lock()
        self.process = subprocess.Popen(
            confinement.sandbox.command(argv, view, limits),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment(view) | {name: value},
            cwd=view.code,
            start_new_session=True,
        )
        files = [file.fileno() for file in (stdout, stderr) if not isinstance(file, int)]
        self._watchdog = Watchdog(
            self.process.pid,
            limits,
            scratch=view.scratch,
            outputs=tuple(files),
            gpu_memory=gpu_memory,
            kill=self._kill,
        )

    @property
    def breach(self) -> Breach | None:
        """The limit for which it was killed, or None."""
        return self._watchdog.breach

    def close(self) -> None:
        """Kills what is left, and waits until it is gone. Streams are the caller's."""
        self._watchdog.stop()
        self._kill()
        self.process.wait()

    def _kill(self) -> None:
        with self._killing:
            root = self.process.pid
            below = descendants(root)
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(root, signal.SIGSTOP)  # it adopts orphans; it may not go before them
                kill_below(root)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(root, signal.SIGKILL)
            self._kill_the_rest(below)

    def _kill_the_rest(self, below: set[int]) -> None:
        """Waits until all are gone, and kills whoever bears our mark: children of a supervisor that was killed."""
        deadline = time.monotonic() + _GONE_WITHIN
        while left := (below & process_table().keys()) | _bearing(self._mark.encode()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                logger.error("processes survive SIGKILL, hung in a driver perhaps", pids=sorted(left))
                return
            time.sleep(0.01)


def _bearing(mark: bytes) -> set[int]:
    found = set()
    for pid in process_table():
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(pid)
    return found


def run_confined(
    argv: Sequence[str], sandbox: Sandbox, view: View, limits: Limits, gpu_memory: GpuMemory | None = gpu_memory_of
) -> SandboxResult:
    """Runs a command to its end, confined. Never raises for what the command does."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        confined = ConfinedProcess(
            argv,
            Confinement(sandbox=sandbox, view=view, limits=limits),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            gpu_memory=gpu_memory,
        )
        try:
            code = confined.process.wait()
        finally:
            confined.close()
        texts = [_head(file) for file in (output, errors)]
    outcome, reason = _ending(code, confined.breach, texts[1])
    return SandboxResult(
        level=sandbox.level,
        outcome=outcome,
        reason=reason,
        code=code if code >= 0 else 128 - code,
        wall=time.monotonic() - started,
        output=texts[0],
        errors=texts[1],
    )


def _head(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_SHOWN).decode(errors="replace")


def _ending(code: int, breach: Breach | None, errors: str) -> tuple[Outcome, str]:
    if breach is not None:
        return breach.outcome, breach.reason
    if code == 0:
        return Outcome.OK, ""
    last = errors.strip().rpartition("\n")[2]
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return Outcome.OOM, "it was killed (SIGKILL), most likely for memory"
    if code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        return Outcome.TIMEOUT, "it used up its processor time"
    return Outcome.RUNTIME, f"it ended with code {code}: {last or 'no message'}"[:300]
