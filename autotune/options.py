"""What each command is asked to do: the command line, parsed, before anything is looked up."""

import re
from dataclasses import dataclass
from pathlib import Path

from space.errors import InputError

_DURATION = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The main job. None means: what the deployment says. `settings` are knobs held fixed, as (name, text).

    `benchmark` and `benchmark_dir` name prompts to tune on instead of the deployment's.
    `unsafe`, here and below: run patched code also where this machine cannot confine it.
    """

    deployment: str
    seconds: float | None = None
    max_evals: int | None = None
    seed: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    dry_run: bool = False
    fresh: bool = False
    benchmark: str | None = None
    benchmark_dir: Path | None = None
    unsafe: bool = False
    archive: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Write the best result of a deployment as a configuration. `out` None means the default place."""

    deployment: str
    to: str
    out: Path | None = None
    archive: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveListOptions:
    """List the runs of an archive."""

    archive: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveShowOptions:
    """Show a run, a genome or, as RUN/NUMBER, one attempt: `id` is its id, or an unambiguous beginning of it."""

    id: str
    archive: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTopOptions:
    """Show the best evaluations, of one deployment or of all; measured ones, or predicted ones instead."""

    deployment: str | None = None
    limit: int = 10
    predicted: bool = False
    archive: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Measure an exported configuration against AR and stock, on a benchmark instead of its prompts if named."""

    config: Path
    benchmark: str | None = None
    benchmark_dir: Path | None = None
    unsafe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceOptions:
    """Count what every drafter of a deployment, or of a configuration's, has accepted on sets of prompts.

    `prompts` is the most a set gives; `benchmark` files, or names of files in `benchmark_dir`, are sets beside the
    shipped prompts.
    """

    deployment: str = "cpu-smollm2"
    config: Path | None = None
    benchmark: tuple[str, ...] = ()
    benchmark_dir: Path | None = None
    prompts: int = 20
    max_tokens: int = 128
    draft_length: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Replay chains and trees on recorded answers; `benchmark` as for AcceptanceOptions, else the deployment's own."""

    deployment: str = "cpu-smollm2"
    benchmark: tuple[str, ...] = ()
    benchmark_dir: Path | None = None
    prompts: int = 20
    max_tokens: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Force the tokens of an exported configuration on prompts that the search never saw, or on a benchmark."""

    config: Path
    benchmark: str | None = None
    benchmark_dir: Path | None = None
    unsafe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Say what this machine has and what is missing; `measure` also measures it and fits the cost model."""

    measure: bool = False


def parse_duration(text: str) -> float:
    """Reads `90`, `90s`, `10m` or `1h30m` as seconds above zero; InputError otherwise."""
    match = _DURATION.fullmatch(text.strip().lower())
    parts = match.groupdict() if match else {}
    seconds = sum(float(parts.get(unit) or 0) * size for unit, size in (("h", 3600), ("m", 60), ("s", 1)))
    if seconds <= 0:
        raise InputError(f"--budget {text}: not a duration; write 90s, 10m or 1h30m")
    return seconds


def parse_setting(text: str) -> tuple[str, str]:
    """Splits `name=value`; InputError otherwise."""
    name, equals, value = text.partition("=")
    if not (equals and name.strip() and value.strip()):
        raise InputError(f"--set {text}: not name=value; write for example --set draft_length=8")
    return name.strip(), value.strip()
