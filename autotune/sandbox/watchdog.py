"""What all processes of a candidate use together, sampled from outside; the first broken limit ends it."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from autotune.sandbox.base import Breach, Limits
from autotune.sandbox.launch import descendants
from autotune.sandbox.workspace import bytes_below
from space.outcome import Outcome

EVERY = 0.2
"""Seconds between two samples, at least."""
_REST = 50
"""A sample reads the process table; the pause after it is this many times as long: it may not disturb what is timed."""
_DISK_EVERY = 5
"""Samples between two looks at the disk and the GPU, which cost more."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")

GpuMemory = Callable[[frozenset[int]], int]
"""Bytes that these processes hold on all devices."""


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone. Cheap: it does not hold up the process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


def proportional_bytes(pid: int) -> int:
    """The same with shared pages divided among their users. Walks the page tables and holds up the process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
    except OSError:
        return resident_bytes(pid)
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:")), 0)


def cpu_seconds(pid: int) -> float:
    """Processor seconds of a process and of its children that ended; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def available_bytes() -> int:
    """Memory that the machine could still give away."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


class Watchdog:
    """A thread that samples one process and everything below it, and calls `kill` once when a limit is broken."""

    def __init__(
        self,
        root: int,
        limits: Limits,
        *,
        scratch: Path,
        outputs: tuple[int, ...],
        gpu_memory: GpuMemory | None,
        kill: Callable[[], None],
    ) -> None:
        """`outputs` are open files whose sizes are limited together; they stay open until `stop`."""
        self.breach: Breach | None = None
        self._root = root
        self._limits = limits
        self._scratch = scratch
        self._outputs = outputs
        self._gpu_memory = gpu_memory
        self._kill = kill
        self._began = time.monotonic()
        self._cpu = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after the sample that it may be taking."""
        self._done.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        number, cost = 0, 0.0
        while not self._done.wait(max(EVERY, _REST * cost)):
            number += 1
            began = time.thread_time()
            try:
                self.breach = self._sample(costly=number % _DISK_EVERY == 0)
            except OSError as error:
                self.breach = Breach(outcome=Outcome.RUNTIME, reason=f"it could not be watched any more: {error}")
            cost = time.thread_time() - began
            if self.breach is not None:
                self._kill()
                return

    def _sample(self, *, costly: bool) -> Breach | None:
        pids = frozenset({self._root, *descendants(self._root)})
        return self._cheap(pids) or (self._costly(pids) if costly else None)

    def _cheap(self, pids: frozenset[int]) -> Breach | None:
        limits = self._limits
        alive = time.monotonic() - self._began
        # What an ended orphan has used may leave the sum; what was seen once stays used.
        self._cpu = max(self._cpu, sum(map(cpu_seconds, pids)))
        written = sum(os.fstat(output).st_size for output in self._outputs)
        if alive > limits.wall:
            return Breach(outcome=Outcome.TIMEOUT, reason=f"it ran longer than {limits.wall:.0f} s")
        if self._cpu > limits.cpu:
            return Breach(outcome=Outcome.TIMEOUT, reason=f"it used more than {limits.cpu:.0f} s of processor time")
        if len(pids) > limits.processes:
            return Breach(outcome=Outcome.RUNTIME, reason=f"it had more than {limits.processes} processes")
        if written > limits.output:
            return Breach(outcome=Outcome.RUNTIME, reason=f"it printed more than {_mib(limits.output)}")
        return self._memory(pids)

    def _memory(self, pids: frozenset[int]) -> Breach | None:
        limits = self._limits
        if sum(map(resident_bytes, pids)) > limits.memory and sum(map(proportional_bytes, pids)) > limits.memory:
            return Breach(outcome=Outcome.OOM, reason=f"it held more than {_mib(limits.memory)} of memory")
        if available_bytes() < limits.free_memory:
            reason = f"less than {_mib(limits.free_memory)} of memory was left on the machine while it ran"
            return Breach(outcome=Outcome.OOM, reason=reason)
        return None

    def _costly(self, pids: frozenset[int]) -> Breach | None:
        limits = self._limits
        if bytes_below(self._scratch) > limits.disk:
            return Breach(outcome=Outcome.RUNTIME, reason=f"it wrote more than {_mib(limits.disk)} of files")
        held = self._gpu_memory(pids) if self._gpu_memory is not None and limits.gpu_memory is not None else 0
        if limits.gpu_memory is not None and held > limits.gpu_memory:
            reason = f"it held more than {_mib(limits.gpu_memory)} of GPU memory"
            return Breach(outcome=Outcome.OOM, reason=reason)
        return None
