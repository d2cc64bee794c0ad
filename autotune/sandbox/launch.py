"""The last step before a candidate's own code: limits, and at two of the three levels the confinement itself.

    python -I -S -B launch.py SPECIFICATION -- COMMAND...

Runs as a file of its own, on the standard library alone, in a process that has no other thread; it then becomes the
command or waits for it. The specification is JSON, see `Specification`. Sources: landlock(7), user_namespaces(7),
pivot_root(2), linux/landlock.h.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn, TypedDict

_LIBC = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_NEW_MOUNT, _NEW_UTS, _NEW_IPC, _NEW_USER = 0x20000, 0x4000000, 0x8000000, 0x10000000
_NEW_PID, _NEW_NET = 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_INNER_ID = 65534
"""Nobody: not root, so that the command loses all capabilities when it begins."""

# Numbers of system calls that are the same on every architecture.
_MOUNT_SETATTR, _MOUNT_ATTR_RDONLY, _AT_FDCWD, _AT_RECURSIVE = 442, 1, -100, 0x8000
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_MAKE_DEVICES = 1 << 6 | 1 << 11
_READ = _EXECUTE | _READ_FILE | _READ_DIR
NEEDED_ABI = 6
"""From this version on Landlock also keeps signals and abstract sockets inside (Linux 6.12)."""


class Specification(TypedDict):
    """What launch.py is told.

    mode: `plain` (limits only: inside a sandbox), `namespaces`, or `supervise`.
    parent: the process with which the command has to end; not looked at when plain.
    limits: soft and hard value by name of the resource, such as RLIMIT_FSIZE.
    root: an empty folder, where the new root is put together (namespaces).
    show: paths to be seen, parents first, each with `r` (read), `w` (read and write) or `d` (a device).
    links: symbolic links of the root, as (path, target).
    """

    mode: str
    parent: int
    limits: dict[str, int]
    root: str
    show: list[tuple[str, str]]
    links: list[tuple[str, str]]


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def landlock_abi() -> int:
    """The version of Landlock that this kernel has; 0 when it has none, or it is switched off."""
    if sys.platform != "linux":
        return 0  # the number means another call there
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, 0, 1)))


def _prctl(option: int, value: int) -> None:
    _check(_LIBC.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = (word.encode() if word is not None else None for word in (source, target, kind))
    options = data.encode() if data is not None else None
    _check(_LIBC.mount(*words, ctypes.c_ulong(flags), options), f"mount {target}")


def _set_limits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))
    # When the machine runs out of memory, this is what has to go.
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _restrict(show: Iterable[tuple[str, str]]) -> None:
    """Landlock: only these paths, no TCP, no signals or abstract sockets to the outside."""
    every = (1 << 16) - 1
    attributes = struct.pack("QQQ", every, 3, 3)
    ruleset = _check(_LIBC.syscall(_CREATE_RULESET, attributes, len(attributes), 0), "landlock_create_ruleset")
    granted = {"r": _READ, "w": every & ~_MAKE_DEVICES, "d": _READ_FILE | _WRITE_FILE | _IOCTL_DEV}
    for path, kind in [*show, ("/proc", "r")]:
        # CUDA names its threads through /proc; the one seen here is that of the new process namespace.
        access = granted[kind] | (_WRITE_FILE if path == "/proc" else 0)
        access &= every if os.path.isdir(path) else _OF_FILES
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", access, parent)
        _check(_LIBC.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(parent)
    _check(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _make_read_only(path: str) -> None:
    """Makes a mount read-only, and those below it. Landlock alone would still let an owner change rights and times."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    done = _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, len(attributes))
    _check(done, f"mount_setattr {path}")


def _build_root(root: str, show: Iterable[tuple[str, str]], links: Iterable[tuple[str, str]]) -> None:
    """Makes a root that has these paths and nothing else, and moves into it."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for path, kind in show:
        inside = root + path
        if os.path.isdir(path):
            os.makedirs(inside, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        _mount(path, inside, None, _MS_BIND | _MS_REC)
        if kind == "r":
            _make_read_only(inside)
    for path, target in links:
        os.symlink(target, root + path)
    os.mkdir(root + "/proc")
    _mount("proc", root + "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    here = os.getcwd()
    os.chdir(root)
    # The old root comes to lie on the new one, and is taken off.
    _check(_LIBC.pivot_root(b".", b"."), "pivot_root")
    _check(_LIBC.umount2(b".", _MNT_DETACH), "umount")
    os.chdir(here)


def _enter_namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    flags = _NEW_USER | _NEW_MOUNT | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS
    _check(_LIBC.unshare(flags), "unshare")
    users, groups = (f"{_INNER_ID} {own} 1" for own in (user, group))
    for name, text in (("setgroups", "deny"), ("uid_map", users), ("gid_map", groups)):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _end_with(parent: int, number: signal.Signals) -> None:
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        _end("the process that started it is gone")


def _become(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _end(f"cannot start {command[0]}: {error.strerror}")


def _end(message: str) -> NoReturn:
    sys.stderr.write(f"sandbox: {message}\n")
    sys.stderr.flush()
    os._exit(125)


def _in_child(work: Callable[[], NoReturn]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    except OSError as error:
        _end(str(error))


def _await(child: int) -> int:
    """Collects children, orphans included, until this one ends; returns its exit code, 128 + n after signal n."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _namespaces(specification: Specification, command: list[str]) -> NoReturn:
    os.umask(0o022)
    _enter_namespaces()
    _end_with(specification["parent"], signal.SIGKILL)  # after it, since a change of credentials may clear it

    def worker() -> NoReturn:
        _restrict(specification["show"])
        _become(command)

    def first_process() -> NoReturn:
        # When the first process of a process namespace ends, the kernel kills all others in it.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _build_root(specification["root"], specification["show"], specification["links"])
        _set_limits(specification["limits"])
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        os._exit(_await(_in_child(worker)))

    os._exit(_await(_in_child(first_process)))


def process_table() -> dict[int, int]:
    """Living processes and their parents. Zombies are dead."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    parents[int(name)] = int(parent)
    return parents


def descendants(root: int) -> set[int]:
    """All living processes below one."""
    parents = process_table()
    found: set[int] = set()
    border = {root}
    while border:
        border = {pid for pid, parent in parents.items() if parent in border and pid not in found}
        found |= border
    return found


def kill_below(root: int) -> None:
    """Kills all processes below one. They are stopped first: else a child of one could be born behind our back."""
    stopped: set[int] = set()
    while new := descendants(root) - stopped:
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _supervise(specification: Specification, command: list[str]) -> NoReturn:
    _set_limits(specification["limits"])
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans come to us, also those that left the session

    def stop(number: int, frame: object) -> NoReturn:
        kill_below(os.getpid())
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    _end_with(specification["parent"], signal.SIGTERM)

    def worker() -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _become(command)

    code = _await(_in_child(worker))
    kill_below(os.getpid())
    with contextlib.suppress(ChildProcessError):
        while True:  # until they are gone: the memory of a GPU is given back only then
            os.wait()
    os._exit(code)


def main(arguments: list[str]) -> NoReturn:
    """Confines and runs a command; exit code 125 when confining fails."""
    specification: Specification = json.loads(arguments[0])
    command = arguments[2:]
    try:
        if specification["mode"] == "namespaces":
            _namespaces(specification, command)
        if specification["mode"] == "supervise":
            _supervise(specification, command)
        _set_limits(specification["limits"])
        _become(command)
    except OSError as error:
        _end(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
