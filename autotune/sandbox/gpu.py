"""GPU memory of processes, as the driver's own tool tells it. It says nothing inside most containers."""

import shutil
import subprocess

_QUERY = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
_PATIENCE = 3.0


def gpu_memory_of(pids: frozenset[int]) -> int:
    """Bytes that these processes hold on all devices, 0 where nvidia-smi is absent, hangs, or knows none of them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        told = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return 0
    return sum(size for pid, size in parse_usage(told.stdout) if pid in pids)


def parse_usage(text: str) -> list[tuple[int, int]]:
    """Process ids and bytes, from lines such as `1234, 512` (MiB); lines of another form are left out."""
    usage = []
    for line in text.splitlines():
        pid, comma, size = line.partition(",")
        if comma and pid.strip().isdecimal() and size.strip().isdecimal():
            usage.append((int(pid), int(size) << 20))
    return usage
