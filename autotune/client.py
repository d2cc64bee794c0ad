"""A worker process seen from the tuner: asked one thing at a time, timed from outside, killed when it hangs."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TypeAlias, TypeVar

from pydantic import ValidationError

from autotune.log import logger
from autotune.sandbox.base import Confinement
from autotune.sandbox.process import ConfinedProcess
from engine.protocol import (
    AnyReply,
    Failed,
    Force,
    Forced,
    Generate,
    GenerateBatch,
    Generated,
    GeneratedBatch,
    MeasureNoise,
    Noise,
    Ready,
)
from space.errors import WorkerError
from space.outcome import Outcome

ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 120.0
_END_SECONDS = 5.0
_LONGEST_REPLY = 64 << 20
Reply = TypeVar("Reply", Ready, Generated, GeneratedBatch, Forced, Noise)
AnyMessage: TypeAlias = Ready | Generated | GeneratedBatch | Forced | Noise | Failed


class RequestFailed(WorkerError):
    """A request that did not end well; `outcome` says how."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        """Keeps the outcome beside the reason."""
        super().__init__(reason)
        self.outcome = outcome

    @property
    def abnormal(self) -> bool:
        """True when the worker died or had to be killed: what it left behind (a hung device) must be looked at."""
        return self.outcome in (Outcome.RUNTIME, Outcome.TIMEOUT, Outcome.OOM)


class RequestRefused(RequestFailed):
    """The worker says that it cannot answer this request; it lives on."""

    @property
    def abnormal(self) -> bool:
        """False: it ended the request in order."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a worker is started. `module` is run with `python -m`; tests put broken candidates there.

    Code is found on `path`; confined, in the overlay alone, and `path` is not looked at.
    """

    role: str
    model: Path
    max_context: int
    threads: int
    drafter: Path | None = None
    module: str = "engine.worker"
    path: tuple[str, ...] = field(default=(str(ROOT),))
    confinement: Confinement | None = None

    def command(self) -> list[str]:
        """The command line."""
        options = {"role": self.role, "model": self.model, "max-context": self.max_context, "threads": self.threads}
        options |= {"drafter": self.drafter} if self.drafter else {}
        flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        return [sys.executable, "-m", self.module, *flags]


class WorkerClient:
    """One worker process; started on first use, and again after it died."""

    def __init__(self, launch: Launch) -> None:
        """Starts nothing yet."""
        self._launch = launch
        self._log = logger.bind(role=launch.role)
        self._process: subprocess.Popen[bytes] | None = None
        self._confined: ConfinedProcess | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = b""
        self._ready: Ready | None = None

    def __enter__(self) -> "WorkerClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def launch(self) -> None:
        """Starts the process if there is none, without waiting until it is ready."""
        if self._process is not None:
            return
        # A file, not a pipe: a survivor of a kill could hold a pipe open.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = self._started(self._errors)
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)  # a worker that does not read may not hold us up
        self._buffer = b""
        self._log.info("worker started", pid=self._process.pid)

    def _started(self, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        command, confinement, pipe = self._launch.command(), self._launch.confinement, subprocess.PIPE
        if confinement is not None:
            self._confined = ConfinedProcess(command, confinement, stdin=pipe, stdout=pipe, stderr=errors)
            return self._confined.process
        path = os.pathsep.join([*self._launch.path, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, env=environment, start_new_session=True
        )

    def start(self) -> Ready:
        """Waits until the process is ready; returns its first line. RequestFailed when it cannot load its model."""
        if self._process is not None and self._ready is not None:
            return self._ready
        self.launch()
        try:
            self._ready = self._expect(Ready, _START_SECONDS)
        except RequestRefused:
            self.close()
            raise
        return self._ready

    def generate(self, request: Generate, timeout: float) -> tuple[Generated, float]:
        """Sends one request; returns the reply and its wall seconds as seen here. RequestFailed otherwise."""
        self.start()
        started = time.perf_counter()
        self._send(request.model_dump_json(), timeout)
        reply = self._expect(Generated, timeout)
        return reply, time.perf_counter() - started

    def generate_batch(self, request: GenerateBatch, timeout: float) -> tuple[GeneratedBatch, float]:
        """Sends several requests at once; returns the reply and the wall seconds of all. RequestFailed otherwise."""
        self.start()
        started = time.perf_counter()
        self._send(request.model_dump_json(), timeout)
        reply = self._expect(GeneratedBatch, timeout)
        return reply, time.perf_counter() - started

    def force(self, request: Force, timeout: float) -> Forced:
        """Has stock judge tokens."""
        self.start()
        self._send(request.model_dump_json(), timeout)
        return self._expect(Forced, timeout)

    def noise(self, request: MeasureNoise, timeout: float) -> Noise:
        """Has stock compare itself with itself."""
        self.start()
        self._send(request.model_dump_json(), timeout)
        return self._expect(Noise, timeout)

    def close(self) -> None:
        """Kills the process and everything that it started."""
        process, self._process, self._ready = self._process, None, None
        if process is None:
            return
        confined, self._confined = self._confined, None
        if confined is not None:
            confined.close()
        else:
            with contextlib.suppress(ProcessLookupError):  # it may be gone already
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that a dead worker did not take
                    stream.close()

    def _send(self, line: str, timeout: float) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise WorkerError("the worker is not running")
        if self._buffer or self._has_spoken():
            self.close()
            raise RequestFailed(Outcome.RUNTIME, "the worker answered before it was asked")
        left = line.encode() + b"\n"
        deadline = time.perf_counter() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while left:
                if not selector.select(max(0.0, deadline - time.perf_counter())):
                    self.close()
                    raise RequestFailed(Outcome.TIMEOUT, f"the request was not read within {timeout:.0f} s")
                try:
                    left = left[os.write(process.stdin.fileno(), left) :]
                except BrokenPipeError:
                    raise self._died() from None

    def _has_spoken(self) -> bool:
        """True when something lies in the pipe: an answer, or the end of the process, which shows on writing."""
        process = self._process
        if process is None or process.stdout is None or process.poll() is not None:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return bool(selector.select(0))

    def _expect(self, kind: type[Reply], timeout: float) -> Reply:
        reply = self._parse(self._read_line(timeout))
        if isinstance(reply, Failed):
            raise RequestRefused(Outcome(reply.outcome), reply.reason)
        if not isinstance(reply, kind):
            self.close()
            raise RequestFailed(Outcome.RUNTIME, f"the worker answered {reply.kind!r} instead of {kind.__name__}")
        return reply

    def _parse(self, line: bytes) -> AnyMessage:
        try:
            return AnyReply.model_validate_json(b'{"body":' + line + b"}").body
        except ValidationError as error:
            self.close()
            raise RequestFailed(Outcome.RUNTIME, f"the worker's answer is not the protocol: {line[:80]!r}") from error

    def _read_line(self, timeout: float) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise WorkerError("the worker is not running")
        deadline = time.perf_counter() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.perf_counter()
                if left <= 0 or not selector.select(left):
                    self._log.warning("worker killed", timeout=timeout)
                    self.close()
                    raise RequestFailed(Outcome.TIMEOUT, f"no answer within {timeout:.0f} s; the worker was killed")
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise self._died()
                self._buffer += piece
                if len(self._buffer) > _LONGEST_REPLY:
                    self.close()
                    raise RequestFailed(Outcome.RUNTIME, f"the worker's answer is longer than {_LONGEST_REPLY} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> RequestFailed:
        process, errors = self._process, self._errors
        try:
            code = process.wait(_END_SECONDS) if process is not None else None
        except subprocess.TimeoutExpired:
            self.close()
            return RequestFailed(Outcome.RUNTIME, "the worker closed its output and went on running")
        breach = self._confined.breach if self._confined is not None else None
        if breach is not None:
            self._log.warning("worker killed", outcome=breach.outcome, reason=breach.reason)
            self.close()
            return RequestFailed(breach.outcome, breach.reason)
        last = ""
        if errors is not None:
            errors.seek(0, os.SEEK_END)
            errors.seek(max(0, errors.tell() - 4096))
            last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        self._log.warning("worker died", code=code, last=last)
        self.close()
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return RequestFailed(Outcome.OOM, "the worker was killed (SIGKILL), most likely for memory")
        exhausted = "MemoryError" in last or "out of memory" in last
        outcome = Outcome.OOM if exhausted else Outcome.RUNTIME
        return RequestFailed(outcome, f"the worker ended with code {code}: {last or 'no message'}"[:300])
