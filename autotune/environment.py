"""What a run ran on: machine, versions, and the content of the code that decides results."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from archive.base import Environment
from autotune.client import ROOT
from space.canonical import content_hash

_CODE = ("space", "kernels", "engine")


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def usable_cores() -> int:
    """Processors that this process may use: a container may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_gib() -> float:
    """Physical memory in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def code_hash() -> str:
    """Content hash of every source file of space/, kernels/ and engine/."""
    files = sorted(path for room in _CODE for path in (ROOT / room).rglob("*.py"))
    return content_hash({str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files})


def environment() -> Environment:
    """This machine and this code, now. Imports no torch: versions come from the installed packages."""
    return Environment(
        host=platform.node(),
        cpu=cpu_model(),
        cores=usable_cores(),
        memory_gib=round(memory_gib(), 1),
        python=platform.python_version(),
        torch=version("torch"),
        system=f"{platform.system()} {platform.machine()}",
        code=code_hash(),
    )
