"""Which levels this machine reaches: each is tried with a program that looks for the ways out."""

import json
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which

from autotune.sandbox.base import Level, Limits, Sandbox
from autotune.sandbox.launch import NEEDED_ABI, landlock_abi
from autotune.sandbox.levels import Bubblewrap, Namespaces, RlimitsOnly
from autotune.sandbox.process import run_confined
from autotune.sandbox.workspace import Workspace
from space.errors import SandboxError
from space.outcome import Outcome
from space.patch import CodeTree

FLAG = "--unsafe-no-sandbox"
_LIMITS = Limits(wall=20.0, cpu=20.0, memory=1 << 30, free_memory=0)
_NO_NAMESPACES = (
    "allow user namespaces: sysctl user.max_user_namespaces above 0 and, on Ubuntu, "
    "kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile for bwrap; in a container, run it with "
    "--security-opt seccomp=unconfined"
)

# Runs confined. Prints what it reached of what must be out of reach.
_LOOK = """
import json, os, socket, sys
secret, port = sys.argv[1], int(sys.argv[2])
reached = []
def attempt(name, action):
    try:
        action()
    except OSError:
        return
    reached.append(name)
attempt("a file outside", lambda: open(secret).read())
attempt("a file to write", lambda: open(secret, "a").close())
attempt("its own code", lambda: open("engine/x.py", "a").close())
attempt("TCP", lambda: socket.create_connection(("127.0.0.1", port), 1))
attempt("UDP", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9)))
if sum(name.isdecimal() for name in os.listdir("/proc")) > 8:
    reached.append("other processes")
print(json.dumps(reached))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One level: the sandbox, or why this machine does not reach it and what to do about that."""

    level: Level
    sandbox: Sandbox | None
    why_not: str = ""
    remedy: str = ""


def leaks(sandbox: Sandbox) -> str | None:
    """What is wrong with a sandbox on this machine: how it fails to start, or what it lets through. None when sound."""
    tree = CodeTree({"engine/x.py": "x = 1\n"})
    with (
        tempfile.TemporaryDirectory() as outside,
        Workspace(tree) as workspace,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        secret = Path(outside) / "secret"
        secret.write_text("reference", encoding="utf-8")
        argv = [sys.executable, "-I", "-S", "-c", _LOOK, str(secret), str(server.getsockname()[1])]
        result = run_confined(argv, sandbox, workspace.view, _LIMITS)
    if result.outcome is not Outcome.OK:
        return result.reason
    reached = json.loads(result.output)
    return f"it lets through: {', '.join(reached)}" if reached else None


def _bubblewrap() -> Tried:
    program = which("bwrap")
    install = "install bubblewrap 0.8 or later: apt-get install bubblewrap"
    if program is None:
        return Tried(level=Level.BUBBLEWRAP, sandbox=None, why_not="bwrap is not installed", remedy=install)
    sandbox = Bubblewrap(program)
    why_not = leaks(sandbox)
    if why_not is None:
        return Tried(level=Level.BUBBLEWRAP, sandbox=sandbox)
    remedy = install if "nknown option" in why_not else _NO_NAMESPACES
    return Tried(level=Level.BUBBLEWRAP, sandbox=None, why_not=why_not, remedy=remedy)


def _namespaces() -> Tried:
    abi = landlock_abi()
    if abi < NEEDED_ABI:
        why_not = f"Landlock has version {abi} here, {NEEDED_ABI} is needed" if abi else "this kernel has no Landlock"
        return Tried(
            level=Level.NAMESPACES, sandbox=None, why_not=why_not, remedy="a kernel of 6.12 or later with Landlock"
        )
    leak = leaks(Namespaces())
    if leak is None:
        return Tried(level=Level.NAMESPACES, sandbox=Namespaces())
    return Tried(level=Level.NAMESPACES, sandbox=None, why_not=leak, remedy=_NO_NAMESPACES)


_PROBES: tuple[Callable[[], Tried], ...] = (_bubblewrap, _namespaces)


@cache
def probed() -> tuple[Tried, ...]:
    """The levels that confine, best first, up to the first that this machine reaches."""
    found = []
    for probe in _PROBES:
        found.append(probe())
        if found[-1].sandbox is not None:
            break
    return tuple(found)


def best_sandbox(*, unsafe: bool = False) -> Sandbox:
    """The best level that this machine reaches; with `unsafe`, rlimits only where it reaches none.

    SandboxError says for each level why it is out of reach, and what to do. Other systems than Linux reach none.
    """
    tried = probed()
    if tried[-1].sandbox is not None:
        return tried[-1].sandbox
    if unsafe and sys.platform == "linux":
        return RlimitsOnly()
    reasons = "; ".join(f"{entry.level}: {entry.why_not}" for entry in tried)
    raise SandboxError(
        f"this machine cannot confine patched code ({reasons})\n"
        f"{tried[0].remedy}\nOr accept that patches may read and do what you may: {FLAG}"
    )
