"""Hardware profiles: what a device can read, multiply and launch, from datasheets (shipped) or measured by `doctor`.

Every figure carries its source. Bandwidth and matrix rate are peaks; what a real kernel attains of them is a matter of
the system that runs (autotune/overheads.py), except in a measured profile, whose row curve is what the engine attains.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from space.errors import InputError, nearest

SHIPPED = Path(__file__).parent / "hardware_profiles"

Positive = Annotated[FiniteFloat, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Strict):
    """One value in SI units (bytes, bytes/s, FLOP/s, seconds) and where it comes from."""

    value: Positive
    source: str = Field(min_length=1)


class RowPoint(_Strict):
    """Measured: weight bytes a second that the engine's linear layers get through at this many rows."""

    rows: int = Field(ge=1)
    bytes_per_second: Positive


class HardwareProfile(_Strict):
    """One device.

    read_bandwidth: bytes/s that a plain read attains or the datasheet states.
    matrix_rate: dense bf16 FLOP/s with fp32 accumulation.
    memory, l2: bytes; l2 is absent where nothing is read from it twice.
    launch: seconds that one kernel (on a CPU: one operator) costs beyond its bytes and FLOPs.
    host_gap: seconds in which the device waits for the host between two steps.
    rows: the measured row curve of the linear layers; empty in a datasheet profile.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    title: str
    kind: Literal["datasheet", "measured"]
    read_bandwidth: Figure
    matrix_rate: Figure
    memory: Figure
    l2: Figure | None = None
    launch: Figure
    host_gap: Figure
    rows: tuple[RowPoint, ...] = ()

    def streaming_rate(self, rows: int) -> float | None:
        """Weight bytes a second at this many rows, by linear interpolation of seconds a byte; None without a curve.

        Beyond the last point the cost of a row grows as between the last two points.
        """
        if not self.rows:
            return None
        points = [(point.rows, 1.0 / point.bytes_per_second) for point in self.rows]
        if rows <= points[0][0] or len(points) == 1:
            return 1.0 / points[0][1]
        upper = next((i for i, (at, _) in enumerate(points) if at >= rows), len(points) - 1)
        (low, before), (high, after) = points[upper - 1], points[upper]
        return 1.0 / (before + (after - before) * (rows - low) / (high - low))


def profile_names() -> list[str]:
    """The names of the profiles that come with the project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_profile(path: Path) -> HardwareProfile:
    """Reads one TOML file. InputError names key, value and what is allowed."""
    try:
        profile = HardwareProfile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"cannot read hardware profile {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{path}: {where}: {first['msg'].lower()}\nMeasure it anew: run.py doctor --measure"
        ) from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise InputError(f"{path} cannot be read as TOML: {error}") from error
    rows = [point.rows for point in profile.rows]
    if rows != sorted(set(rows)):
        raise InputError(f"{path}: rows must rise strictly, and are {rows}")
    return profile


def find_profile(name: str) -> HardwareProfile:
    """Resolves the name of a shipped profile; InputError offers the nearest one."""
    if name not in profile_names():
        raise InputError(
            f"unknown hardware profile {name!r}{nearest(name, profile_names())}\nShipped: {', '.join(profile_names())}"
        )
    return read_profile(SHIPPED / f"{name}.toml")


def profile_toml(profile: HardwareProfile) -> str:
    """The profile as TOML; read_profile gives it back."""
    lines = [f"{key} = {_quoted(getattr(profile, key))}" for key in ("name", "title", "kind")]
    for key in ("read_bandwidth", "matrix_rate", "memory", "l2", "launch", "host_gap"):
        figure = getattr(profile, key)
        if figure is not None:
            lines += ["", f"[{key}]", f"value = {figure.value!r}", f"source = {_quoted(figure.source)}"]
    for point in profile.rows:
        lines += ["", "[[rows]]", f"rows = {point.rows}", f"bytes_per_second = {point.bytes_per_second!r}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{"".join(c if c.isprintable() else " " for c in escaped)}"'
