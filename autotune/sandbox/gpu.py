"""GPU memory of processes, as the driver's own tool tells it. It knows no process inside most containers."""

import shutil
import subprocess

_FORMAT = "--format=csv,noheader,nounits"
_PATIENCE = 3.0


def _told(query: str) -> str:
    """What nvidia-smi answers; nothing where it is absent or hangs, which a busy driver may make it do."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, query, _FORMAT], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return answer.stdout


def gpu_memory_of(pids: frozenset[int]) -> int:
    """Bytes that these processes hold on all devices, as far as the driver tells."""
    lines = (line.partition(",") for line in _told("--query-compute-apps=pid,used_memory").splitlines())
    return sum(_bytes(size) for pid, _, size in lines if pid.strip().isdecimal() and int(pid) in pids)


def gpu_memory_total() -> int:
    """Bytes of memory of all devices; 0 without a GPU."""
    return sum(map(_bytes, _told("--query-gpu=memory.total").splitlines()))


def _bytes(text: str) -> int:
    """A number of MiB; what is no number, such as `[N/A]`, counts as nothing."""
    return int(text) << 20 if text.strip().isdecimal() else 0
