"""How an evaluation ended. An outcome is never a number."""

from enum import StrEnum


class Outcome(StrEnum):
    """Every way in which an evaluation can end."""

    OK = "ok"
    INVALID = "invalid"
    COMPILE = "compile"
    RUNTIME = "runtime"
    TIMEOUT = "timeout"
    OOM = "oom"
    MISMATCH = "mismatch"
    UNSTABLE = "unstable"
    CANCELLED = "cancelled"
    STALE = "stale"
