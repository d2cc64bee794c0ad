"""The document that hands a tuned setting to the engine, with the evidence for it. One JSON file, versioned."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from archive.faults import os_fault
from space.deployment import NAME_PATTERN, Deployment, DrafterSource, Hardware, Objective, Target, Workload
from space.errors import InputError, nearest
from space.genome import Genome
from space.knobs import KnobValue
from space.patch import Patch

FORMAT: Literal["specpilot-engine-1"] = "specpilot-engine-1"

Positive = Annotated[FiniteFloat, Field(gt=0)]
NotNegative = Annotated[FiniteFloat, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExportedDeployment(_Strict):
    """What was tuned: the content that decides a result, and the name that it had."""

    name: str = Field(pattern=NAME_PATTERN)
    target: Target
    drafter: DrafterSource | None
    hardware: Hardware
    workload: Workload
    objective: Objective | None = None

    def restore(self) -> Deployment:
        """The deployment, ready to run; its signature is that of the tuned one."""
        return Deployment.model_validate({"description": f"exported from {self.name}", **self.model_dump()})


class MeasuredOn(_Strict):
    """The environment of the run; the fields of archive.base.Environment."""

    host: str
    cpu: str
    cores: int
    memory_gib: float
    python: str
    torch: str
    system: str
    code: str


class PromptEvidence(_Strict):
    """Ids of the prompts that the search saw, and of those that only the confirmation saw, with their hash."""

    searched: tuple[str, ...]
    confirmed: tuple[str, ...]
    confirmed_hash: str


class SystemEvidence(_Strict):
    """One system on the confirmation prompts: median over repeats, spread as 1.4826 x MAD over the median."""

    tokens_per_second: Positive
    spread: NotNegative
    tau: Positive
    repeats: Annotated[int, Field(ge=1)]
    tokens: Count
    seconds: Positive


class ForcedEvidence(_Strict):
    """Token forcing of the confirmation: every token checked against stock, none a mismatch."""

    tokens: Annotated[int, Field(ge=1)]
    exact: Count
    near_ties: Count


class ExportedPatch(_Strict):
    """The text of a code patch, see space.patch.Patch."""

    base: str
    diff: str


class Evidence(_Strict):
    """Where the setting comes from and what was measured. `attempt` is RUN/NUMBER of the confirmation."""

    run_id: str
    genome_id: str
    attempt: str
    environment: MeasuredOn
    prompts: PromptEvidence
    ratio_ar: Positive
    ratio_stock: Positive
    spread: NotNegative
    ar: SystemEvidence
    stock: SystemEvidence
    best: SystemEvidence
    forced: ForcedEvidence


class EngineExport(_Strict):
    """The whole document. `created` is UTC, ISO 8601. The key `patches` is absent where there are none."""

    format: Literal["specpilot-engine-1"]
    created: str
    deployment: ExportedDeployment
    knobs: dict[str, KnobValue]
    patches: tuple[ExportedPatch, ...] = ()
    evidence: Evidence

    @property
    def genome(self) -> Genome:
        """The knobs and patches as a genome."""
        return Genome.of(self.knobs).patched([Patch(base=patch.base, diff=patch.diff) for patch in self.patches])

    @model_validator(mode="after")
    def _evidence_belongs_to_knobs(self) -> "EngineExport":
        if self.genome.id != self.evidence.genome_id:
            raise ValueError(
                f"these knobs are genome {self.genome.id}, the evidence is for {self.evidence.genome_id}; "
                "export again instead of editing the file"
            )
        return self


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A name beside the file, gone at the end unless it has replaced the file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_export(path: Path, document: EngineExport) -> None:
    """Writes the document whole or not at all: what stood there before stays until the new file is on disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                absent = None if document.patches else {"patches"}
                file.write(document.model_dump_json(indent=2, exclude=absent) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        raise os_fault(path, error) from error


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that are known beside the last part of an error's location."""
    model: Any = EngineExport
    for part in loc[:-1]:
        model = get_args(model)[0] if isinstance(part, int) else model.model_fields[part].annotation
    return list(model.model_fields)


def _complaint(path: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _known_keys(first["loc"])
        return f"{path}: unknown key {where}{nearest(str(first['loc'][-1]), known)}\nKnown here: {', '.join(known)}"
    if first["type"] == "missing":
        return f"{path}: key {where} is missing\nWrite the file anew with: python run.py export"
    if not where:
        return f"{path}: {first['msg'].removeprefix('Value error, ')}"
    return f"{path}: {where} = {first['input']!r}: {first['msg']}"


def read_export(path: Path) -> EngineExport:
    """Reads a document. InputError names the line of a syntax error, or key, value and what is allowed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}\nMake it with: python run.py export") from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{path}: format = {found!r}; this program reads {FORMAT!r}\n"
            "Give a file that `run.py export --to engine` of this version wrote."
        )
    try:
        return EngineExport.model_validate(content)
    except ValidationError as error:
        raise InputError(_complaint(path, error)) from error
