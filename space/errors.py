"""The project's error classes. A message names the key, the value, what is allowed, and what to do next."""

import difflib
from collections.abc import Iterable


class SpecPilotError(Exception):
    """Root of every error that this project raises on purpose."""


class InputError(SpecPilotError):
    """What the user gave cannot be used: a file, a flag, a deployment. Ends a command with exit code 2."""


class PatchError(SpecPilotError):
    """A code patch cannot be read, made, applied or merged; the message names the file and the hunk or block."""


class ArchiveError(SpecPilotError):
    """The archive cannot be opened or used as asked: newer version, other run's lock, full disk."""


class EngineError(SpecPilotError):
    """The engine cannot load or run what it was given."""


class WorkerError(SpecPilotError):
    """A worker process died, timed out or answered something that is not the protocol."""


class SandboxError(SpecPilotError):
    """Code that somebody else wrote cannot be confined on this machine as asked, so it is not run."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Ends a sentence: with `; did you mean 'ngram'?`, or with a full stop when nothing is close."""
    match = difflib.get_close_matches(name, sorted(allowed), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else "."
