"""The contract of the sandbox: what a confined process sees, what it may use, how it is started, how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from space.outcome import Outcome


class Level(StrEnum):
    """How well a candidate is confined, best first; stored with each evaluation. docs/sandbox.md compares them."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces+landlock"
    RLIMITS = "rlimits"


UNCONFINED = "none"
"""Stored for a candidate that is the project's own code with other knobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The files that a confined process sees besides Python and the system's libraries. Paths are the same inside.

    code: the overlay; read-only, and the first entry of PYTHONPATH.
    read_only: more folders or files, such as the model's and the drafter's.
    scratch: a private folder that it may write to: home, temporary files and caches lie there.
    """

    code: Path
    read_only: tuple[Path, ...]
    scratch: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What all processes of one candidate together may use.

    wall, cpu: seconds from its start to its end; processor seconds.
    memory: bytes of resident memory, shared pages counted once. RLIMIT_AS cannot be used: CUDA reserves hundreds of
        GiB of address space.
    free_memory: bytes that must stay available on the machine: memory files belong to no process.
    processes: living processes; threads do not count.
    output: bytes of standard error (and of standard output, where it is not a pipe).
    file, disk: bytes of one file, and of the scratch folder.
    gpu_memory: bytes on all devices, or None where there is no GPU.
    """

    wall: float
    cpu: float
    memory: int
    free_memory: int
    gpu_memory: int | None = None
    processes: int = 128
    output: int = 8 << 20
    file: int = 1 << 30
    disk: int = 4 << 30


class Sandbox(Protocol):
    """One level of confinement."""

    level: Level

    def command(self, argv: Sequence[str], view: View, limits: Limits) -> list[str]:
        """The command line that runs `argv` confined. What it starts is gone when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """Everything that starting a confined process needs."""

    sandbox: Sandbox
    view: View
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A limit that was broken: how the evaluation ends, and why."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """How a confined command ended. `code` is its exit code, 128 + n after signal n; output is cut at the limit."""

    level: Level
    outcome: Outcome
    reason: str
    code: int
    wall: float
    output: str
    errors: str
