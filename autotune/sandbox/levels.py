"""The three levels. Each turns a command into the command that runs it confined."""

import json
import os
import sys
from collections.abc import Sequence

from autotune.sandbox import launch
from autotune.sandbox.base import Level, Limits, View
from autotune.sandbox.visible import PLAIN_DEVICES, gpu_devices, read_only, root_links

_SHARED_MEMORY = 64 << 20
_OPEN_FILES = 4096


def _process_limits(limits: Limits, *, own_users: bool) -> dict[str, int]:
    """Limits of each process, as a floor below the watchdog, which looks at all of them together.

    RLIMIT_NPROC counts by user: it means something only in a user namespace of its own, and nothing for root.
    """
    each = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_FSIZE": limits.file,
        "RLIMIT_CPU": max(1, int(limits.cpu) + 1),
    }
    if own_users:
        each["RLIMIT_NPROC"] = 32 * limits.processes  # the kernel counts threads here
    if not gpu_devices():
        each["RLIMIT_DATA"] = limits.memory  # not tried with CUDA; without it, a clean MemoryError
    return each


def _launcher(specification: launch.Specification, argv: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", "-B", launch.__file__, json.dumps(specification), "--", *argv]


class Bubblewrap:
    """bubblewrap: everything in namespaces of its own, only the shown files exist."""

    level = Level.BUBBLEWRAP

    def __init__(self, program: str) -> None:
        """`program` is the path of bwrap."""
        self._program = program

    def command(self, argv: Sequence[str], view: View, limits: Limits) -> list[str]:
        """See Sandbox."""
        inner = launch.Specification(
            mode="plain", parent=0, limits=_process_limits(limits, own_users=True), root="", show=[], links=[]
        )
        shown = sorted({*read_only(view), launch.__file__})
        size = ["--size", str(_SHARED_MEMORY)]
        confining = [
            self._program,
            *(
                "--unshare-all",
                "--unshare-user",
                "--disable-userns",
                "--die-with-parent",
                "--new-session",
                "--cap-drop",
                "ALL",
            ),
            *("--uid", "65534", "--gid", "65534", "--hostname", "candidate"),
            *(word for path, target in root_links() for word in ("--symlink", target, path)),
            *("--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm"),
            *(word for path in shown for word in ("--ro-bind", path, path)),
            *(word for path in gpu_devices() for word in ("--dev-bind", path, path)),
            *("--bind", str(view.scratch), str(view.scratch)),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(view.code)),
            "--",
            *_launcher(inner, argv),
        ]
        # bwrap asks to end with its parent, but only once it has started; and it ends before what it confines is gone.
        outer = launch.Specification(mode="supervise", parent=os.getpid(), limits={}, root="", show=[], links=[])
        return _launcher(outer, confining)


class Namespaces:
    """The same namespaces made by launch.py, with Landlock on top: for hosts without bubblewrap."""

    level = Level.NAMESPACES

    def command(self, argv: Sequence[str], view: View, limits: Limits) -> list[str]:
        """See Sandbox."""
        kinds = {
            **dict.fromkeys(read_only(view), "r"),
            **dict.fromkeys((*PLAIN_DEVICES, *gpu_devices()), "d"),
            str(view.scratch): "w",
        }
        root = view.scratch.parent / "root"
        root.mkdir(exist_ok=True)
        specification = launch.Specification(
            mode="namespaces",
            parent=os.getpid(),
            limits=_process_limits(limits, own_users=True),
            root=str(root),
            show=sorted(kinds.items()),
            links=root_links(),
        )
        return _launcher(specification, argv)


class RlimitsOnly:
    """Limits and a clean environment; files, network and other processes stay within reach. For the flag only."""

    level = Level.RLIMITS

    def command(self, argv: Sequence[str], view: View, limits: Limits) -> list[str]:
        """See Sandbox."""
        specification = launch.Specification(
            mode="supervise",
            parent=os.getpid(),
            limits=_process_limits(limits, own_users=False),
            root="",
            show=[],
            links=[],
        )
        return _launcher(specification, argv)
