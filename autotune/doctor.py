"""What this machine has and what is missing."""

import importlib.util
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version

from autotune.environment import cpu_model, memory_gib, usable_cores
from autotune.sandbox.probe import FLAG, probed
from autotune.terminal import Check
from engine.weights.source import EMBEDDED_FOLDER, home_folder

_NEEDED_GIB = 2.0
_NEEDED_DISK = 1.0
_PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "jinja2",
    "gguf",
    "optuna",
    "deap",
    "pydantic",
    "structlog",
    "rich",
)


def _package(name: str) -> Check:
    try:
        return Check(name=name, value=version(name))
    except PackageNotFoundError:
        return Check(name=name, value="not installed", ok=False, remedy="pip install -e .")


def _vllm() -> Check:
    there = importlib.util.find_spec("vllm") is not None
    value = (
        version("vllm") if there else "not installed (optional: a second reference stock, pip install -e '.[stock]')"
    )
    return Check(name="vllm", value=value)


def _sandbox() -> Check:
    """The level at which code patches would be confined. Without one only patches are refused, so nothing is amiss."""
    tried = probed()
    reached = next((str(entry.level) for entry in tried if entry.sandbox is not None), None)
    better = [f"{entry.level}: {entry.why_not}; {entry.remedy}" for entry in tried if entry.sandbox is None]
    value = reached or f"none: code patches are refused (or run unconfined with {FLAG})"
    return Check(name="sandbox", value=value if not better else f"{value} (better, {'; or '.join(better)})")


def checks() -> list[Check]:
    """All checks, in the order in which they are shown."""
    home = home_folder()
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 2**30
    memory = memory_gib()
    model = home / EMBEDDED_FOLDER
    cached = (model / "config.json").exists()
    return [
        Check(name="python", value=platform.python_version()),
        Check(name="processor", value=f"{cpu_model()}, {usable_cores()} cores"),
        Check(
            name="memory",
            value=f"{memory:.1f} GiB",
            ok=memory >= _NEEDED_GIB,
            remedy=f"the main job needs about {_NEEDED_GIB:.0f} GiB",
        ),
        Check(
            name="disk",
            value=f"{free:.1f} GiB free at {existing}",
            ok=free >= _NEEDED_DISK,
            remedy="free 1 GiB, or set SPECPILOT_HOME to another disk",
        ),
        Check(name="home", value=str(home)),
        Check(
            name="model",
            value=str(model) if cached else "SmolLM2-135M-Instruct is not cached; the first run fetches it (93 MB)",
        ),
        _sandbox(),
        *map(_package, _PACKAGES),
        _vllm(),
    ]
