"""What this machine has and what is missing."""

import importlib.util
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version

from autotune.calibrate import Calibration
from autotune.environment import cpu_model, memory_gib, usable_cores
from autotune.measured import Measured, measured_profile_path
from autotune.sandbox.probe import FLAG, probed
from autotune.terminal import Check
from engine.weights.source import EMBEDDED_FOLDER, home_folder
from space.hardware import HardwareProfile, read_profile

_NEEDED_GIB = 2.0
_NEEDED_DISK = 1.0
_MOST_ERROR = 0.10
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
    cached = embedded_model_cached()
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
        _plotting(),
        _profile(),
    ]


def embedded_model_cached() -> bool:
    """True when the embedded model's checkpoint lies in the home folder."""
    return (home_folder() / EMBEDDED_FOLDER / "config.json").exists()


def _plotting() -> Check:
    there = importlib.util.find_spec("matplotlib") is not None
    value = version("matplotlib") if there else "not installed (optional: plots of gaps, pip install -e '.[plot]')"
    return Check(name="matplotlib", value=value)


def _profile() -> Check:
    path = measured_profile_path(home_folder())
    if not path.exists():
        return Check(name="profile", value="this machine is not measured yet: python run.py doctor --measure")
    return Check(name="profile", value=f"{path}: {profile_line(read_profile(path))}")


def profile_line(profile: HardwareProfile) -> str:
    """The figures of a profile on one line."""
    reads, multiplies = profile.read_bandwidth.value / 1e9, profile.matrix_rate.value / 1e12
    return f"reads {reads:.1f} GB/s, multiplies {multiplies:.2f} TFLOP/s, {profile.launch.value * 1e6:.1f} us a launch"


def measured_checks(measured: Measured) -> list[Check]:
    """What `doctor --measure` found, as lines."""
    rows = ", ".join(f"{point.rows}: {point.bytes_per_second / 1e9:.1f}" for point in measured.profile.rows)
    return [
        Check(name="measured", value=profile_line(measured.profile)),
        Check(name="rows", value=f"GB/s of weights through the linear layers by rows: {rows}"),
        _calibration(measured.calibration),
        Check(name="written", value=str(measured.profile_path)),
    ]


def _calibration(found: Calibration | None) -> Check:
    if found is None:
        return Check(name="cost model", value="not fitted: the embedded model is not cached; the first run fetches it")
    scales = (
        f"products x{found.products:.2f}, attention x{found.attention:.2f}, operators x{found.operators:.2f}, "
        f"draft x{found.draft:.2f}"
    )
    error = f"median absolute error {found.step_error:.1%} a step (verify alone {found.verify_error:.1%})"
    return Check(
        name="cost model",
        value=f"{error} on {found.tested} steps that the fit of {found.fitted} did not see; {scales}; "
        f"AR's own steps spread by {found.noise:.1%}",
        ok=found.step_error < _MOST_ERROR,
        remedy=f"above {_MOST_ERROR:.0%}: no model errs much less than AR's steps spread; try again when it is quiet",
    )
