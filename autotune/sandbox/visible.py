"""What every confined process sees and is told: the system's libraries, Python, devices, and a clean environment."""

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from autotune.sandbox.base import View

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")
PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

PASSED_ON = (
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TRITON_INTERPRET",
)
"""The only variables that reach a candidate from outside: none of them is a secret."""


def environment(view: View, outside: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The whole environment of a confined process."""
    kept = {name: outside[name] for name in PASSED_ON if name in outside}
    scratch = view.scratch
    return kept | {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(scratch / "home"),
        "USER": "candidate",
        "LOGNAME": "candidate",
        "TMPDIR": str(scratch / "tmp"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "CUDA_CACHE_PATH": str(scratch / "cuda"),
        "PYTHONPATH": str(view.code),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "HF_HUB_OFFLINE": "1",
    }


def gpu_devices() -> tuple[str, ...]:
    """The device nodes of NVIDIA GPUs."""
    return tuple(sorted(str(path) for path in Path("/dev").glob("nvidia*") if path.is_char_device()))


def read_only(view: View) -> list[str]:
    """Folders and files to be read, parents first, each that exists once; links of the root are not among them."""
    python = {sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"], *site.getsitepackages()}
    libraries = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if _has_libraries(path)]
    wanted = {
        *(path for path in _SYSTEM if not os.path.islink(path)),
        *_SETTINGS,
        *(("/sys",) if gpu_devices() else _TOPOLOGY),
        *(os.path.abspath(path) for path in (*python, *libraries)),
        *(str(path.absolute()) for path in (view.code, *view.read_only)),
    }
    # A file that is reached through a link is shown where the link leads, too.
    wanted |= {os.path.realpath(path) for path in wanted if path not in _SETTINGS}
    return sorted(path for path in wanted if os.path.exists(path))


def _has_libraries(path: str) -> bool:
    """False for what stands in the search path by accident, such as `.`: it would be shown with all it has."""
    return os.path.isabs(path) and any(Path(path).glob("*.so*"))


def root_links() -> list[tuple[str, str]]:
    """Links such as /lib -> usr/lib, as (path, target)."""
    return [(path, os.readlink(path)) for path in _SYSTEM if os.path.islink(path)]
