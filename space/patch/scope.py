"""What a patch may touch: files of engine/ and kernels/, but for those on which the judgement of a candidate rests."""

import re
from collections.abc import Iterator

PATCHED_ROOMS = ("engine", "kernels")
_SUFFIXES = (".py", ".cu", ".cuh")
_PART = re.compile(r"[A-Za-z0-9_]+")

OFF_LIMITS: dict[str, str] = {
    "run.py": "the front door decides what is run",
    "archive/": "what is remembered may not be rewritten by what is tried",
    "autotune/": "clock, token forcing, score, budget and sandbox lie there",
    "tests/": "what checks the code may not be changed by what is checked",
    "benchmarks/": "measuring is not the candidate's business",
    "space/": "it says what may be chosen, patches included",
    "engine/stock.py": "it judges every token",
    "engine/worker.py": "it takes the requests that are timed and sends the answers that are judged",
    "engine/protocol.py": "it is the language of those requests and answers",
    "engine/weights/": "it says which weights are the target's",
    "engine/tokenizer.py": "prompts are encoded outside the candidate, once for all",
    "engine/drafters/train/": "training is no part of decoding",
    "engine/drafters/bundled/": "it holds the bundled drafter's weights",
}
"""Files and folders (with a slash) that no patch may touch, each with the reason."""


def forbidden(path: str) -> str | None:
    """Why a patch may not touch a path, or None when it may. The path need not exist: a patch may add a file."""
    for entry, reason in OFF_LIMITS.items():
        if any(_same(own, entry) for own in _meanings(path)):
            return f"{entry} is off limits: {reason}"
    stem, dot, suffix = path.rpartition(".")
    parts = stem.split("/")
    if len(parts) < 2 or parts[0] not in PATCHED_ROOMS or not all(_PART.fullmatch(part) for part in parts):
        return "only files of engine/ and kernels/ may be patched; write the path from the root, as engine/loop.py"
    if dot + suffix not in _SUFFIXES:
        return f"only {', '.join(_SUFFIXES)} files may be patched"
    return None


def _meanings(path: str) -> Iterator[str]:
    """The path, and every module that it would stand in for: a package `a/b/` hides the module `a/b.py`."""
    parts = path.split("/")
    yield path
    for depth in range(1, len(parts)):
        yield "/".join(parts[:depth]) + ".py"
        yield "/".join(parts[:depth]) + "/"


def _same(path: str, entry: str) -> bool:
    # Some file systems do not tell upper from lower case.
    return path.casefold() == entry or (entry.endswith("/") and path.casefold() == entry[:-1] + ".py")
