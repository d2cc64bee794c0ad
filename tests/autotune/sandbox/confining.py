"""What the tests of the sandbox share: roomy limits, the sandbox of a level, and how confined code answers."""

import pytest

from autotune.sandbox.base import Level, Limits
from autotune.sandbox.levels import RlimitsOnly
from autotune.sandbox.probe import _bubblewrap, _namespaces

LIMITS = Limits(wall=60.0, cpu=60.0, memory=1 << 30, free_memory=0)

# What a test's code finds ready. An OSError is the answer `in`: the candidate did not get out.
PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
outside = json.loads(sys.argv[1])
scratch = os.environ["TMPDIR"]
def answer(word):
    sys.stdout.write(word)
    sys.stdout.flush()
def refused(kind, error, trace):
    answer(f"in: {error}" if issubclass(kind, OSError) else f"broken: {error!r}")
    os._exit(0)
sys.excepthook = refused
"""


def made(level):
    """The sandbox of a level; skips the test, with the reason, where this machine does not have it."""
    if level is Level.RLIMITS:
        return RlimitsOnly()
    tried = {Level.BUBBLEWRAP: _bubblewrap, Level.NAMESPACES: _namespaces}[level]()
    if tried.sandbox is None:
        pytest.skip(f"{level}: {tried.why_not}; {tried.remedy}")
    return tried.sandbox
