"""A deployment: target model, hardware, workload and budget, read from a TOML file.

Its signature is the hash of its canonical content; its name is only an alias. A deployment on `cuda` names a hardware
profile and the shapes of its models, so that it can be planned where neither GPU nor weights are.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from space.canonical import content_hash
from space.errors import InputError, nearest
from space.hardware import find_profile
from space.shapes import find_drafter, find_model

SHIPPED = Path(__file__).parent / "deployments"


MOST_REQUESTS = 64
"""The largest regime of a CPU deployment."""
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Target(_Strict):
    """The model whose tokens must come out.

    `source` is `embedded:smollm2-135m`, a GGUF file, a checkpoint folder, or (to plan with) the public name of a model.
    `shape` names an entry of space/shapes.py; a deployment on `cuda` needs it.
    """

    source: str
    shape: str | None = None
    max_context: int = Field(default=2048, ge=128, le=131072)


class DrafterSource(_Strict):
    """A trained drafter for the target.

    `source` is `bundled:smollm2-135m-dflash`, a checkpoint folder, or (to plan with) the public name of one.
    `shape` names an entry of space/shapes.py; a deployment on `cuda` needs it.
    """

    source: str
    shape: str | None = None


class Hardware(_Strict):
    """The device that the deployment runs on. `profile` names a shipped hardware profile; `cuda` needs it."""

    device: Literal["cpu", "cuda"]
    profile: str | None = None


Regime = Annotated[int, Field(ge=1, le=256)]


class Workload(_Strict):
    """What is asked of the model.

    `prompts` is `shipped` or a JSON-lines file. Temperature 0 is greedy; above it tokens are drawn, from the `top_k`
    likeliest (0: from all) and of those from the likeliest that reach `top_p` together. `concurrency` lists the
    regimes, each a number of requests at once; a CPU deployment has one.
    """

    prompts: str = "shipped"
    max_tokens: int = Field(default=64, ge=8, le=4096)
    temperature: Literal[0] | Annotated[float, Field(gt=0, le=2)] = 0
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    concurrency: tuple[Regime, ...] = Field(default=(1,), min_length=1)
    search_per_group: int = Field(default=1, ge=1, le=64)
    confirm_per_group: int = Field(default=1, ge=1, le=64)

    @model_validator(mode="after")
    def _greedy_has_no_limits(self) -> "Workload":
        if self.temperature == 0 and (self.top_k, self.top_p) != (0, 1.0):
            raise ValueError("top_k and top_p have no effect at temperature 0: give a temperature or leave them out")
        return self


class Objective(_Strict):
    """What counts over several regimes: `weights`, one a regime in the order of workload.concurrency, of log speeds."""

    weights: tuple[Annotated[FiniteFloat, Field(gt=0)], ...]


class BudgetDefaults(_Strict):
    """What a run may cost when the command line does not say: seconds of wall time, and evaluations."""

    seconds: float = Field(default=180, gt=0, le=1e7)
    max_evals: int = Field(default=200, ge=1, le=1_000_000)


class Deployment(_Strict):
    """One complete deployment."""

    name: str = Field(pattern=NAME_PATTERN)
    description: str
    target: Target
    drafter: DrafterSource | None = None
    hardware: Hardware
    workload: Workload
    objective: Objective | None = None
    budget: BudgetDefaults = BudgetDefaults()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        regimes = self.workload.concurrency
        if list(regimes) != sorted(set(regimes)):
            raise ValueError(f"workload.concurrency = {list(regimes)}: allowed are regimes that rise, each once")
        if self.objective is not None and len(self.objective.weights) != len(regimes):
            raise ValueError(
                f"objective.weights has {len(self.objective.weights)} values and workload.concurrency {len(regimes)}: "
                "give one weight a regime"
            )
        if self.hardware.device == "cpu":
            self._fits_cpu()
        else:
            self._fits_cuda()
        return self

    def _fits_cpu(self) -> None:
        if self.hardware.profile is not None:
            raise ValueError(f"hardware.profile = {self.hardware.profile!r}: allowed with device 'cuda' only")
        found = list(self.workload.concurrency)
        if len(found) != 1 or found[0] > MOST_REQUESTS:
            raise ValueError(f"workload.concurrency = {found}: allowed is one regime up to {MOST_REQUESTS} on a CPU")

    def _fits_cuda(self) -> None:
        needed = {"hardware.profile": self.hardware.profile, "target.shape": self.target.shape}
        needed |= {"drafter.shape": self.drafter.shape} if self.drafter else {}
        if self.workload.temperature != 0:
            raise ValueError(f"workload.temperature = {self.workload.temperature}: plans are for temperature 0")
        missing = [key for key, value in needed.items() if value is None]
        if missing:
            raise ValueError(f"{missing[0]} is missing: device 'cuda' needs it to plan")
        try:
            find_profile(str(self.hardware.profile))
            find_model(str(self.target.shape))
            find_drafter(str(self.drafter.shape)) if self.drafter else None
        except InputError as error:
            raise ValueError(str(error)) from error

    def content(self) -> dict[str, Any]:
        """What decides a result: everything but the name, the description and the default budget."""
        content = self.model_dump(mode="json", exclude={"name", "description", "budget"})
        # Absent: so a deployment that says nothing of them keeps the signature that it had before they existed.
        for part in (content, content["target"], content["hardware"], content["drafter"] or {}):
            for key in [key for key in ("shape", "profile", "objective") if key in part and part[key] is None]:
                del part[key]
        if self.workload.temperature == 0:
            del content["workload"]["top_k"], content["workload"]["top_p"]
        return content

    @property
    def regime(self) -> int:
        """How many requests a CPU deployment decodes at once."""
        return self.workload.concurrency[0]

    def at(self, regime: int) -> "Deployment":
        """The same deployment with one regime, under the name `NAME.bREGIME`."""
        workload = self.workload.model_copy(update={"concurrency": (regime,)})
        changes = {"name": f"{self.name}.b{regime}", "workload": workload, "objective": None}
        return self.model_copy(update=changes)

    def weight(self, regime: int) -> float:
        """The share of a regime in the objective: equal ones when nothing is said."""
        regimes = self.workload.concurrency
        weights = self.objective.weights if self.objective else (1.0,) * len(regimes)
        return weights[regimes.index(regime)] / sum(weights)

    @property
    def signature(self) -> str:
        """Content hash, 12 hexadecimal digits."""
        return content_hash(self.content())


def _complaint(path: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        fields: dict[str, Any] = dict(Deployment.model_fields)
        for part in first["loc"][:-1]:
            annotation = fields[str(part)].annotation
            # `DrafterSource | None`: the model is the first of the two.
            fields = dict((get_args(annotation) or (annotation,))[0].model_fields)
        return f"{path}: unknown key {where}{nearest(str(first['loc'][-1]), fields)} Known here: {', '.join(fields)}"
    if first["type"] == "value_error":
        return f"{path}: {first['msg'].removeprefix('Value error, ')}"
    given = "" if first["type"] == "missing" else f" = {first['input']!r}"
    return f"{path}: {where}{given}: {first['msg'].lower()}"


def read_deployment(path: Path) -> Deployment:
    """Reads one TOML file. InputError names the line of a syntax error, or key, value and what is allowed."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not valid TOML: not UTF-8 text at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        last = f"at end of document, line {len(text.splitlines())}"
        raise InputError(f"{path} is not valid TOML: {str(error).replace('at end of document', last)}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise InputError(f"{path} cannot be read as TOML: {error}") from error
    try:
        return Deployment.model_validate(document)
    except ValidationError as error:
        raise InputError(_complaint(path, error)) from error


def shipped_names() -> list[str]:
    """The names of the deployments that come with the project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find_deployment(name: str) -> Deployment:
    """Resolves a shipped name, or a path that ends in .toml. Unknown names are refused with the nearest one."""
    if name.endswith(".toml"):
        return read_deployment(Path(name))
    if name not in shipped_names():
        raise InputError(
            f"unknown deployment {name!r}{nearest(name, shipped_names())}\n"
            f"Shipped: {', '.join(shipped_names())}. Or give the path of a .toml file."
        )
    return read_deployment(SHIPPED / f"{name}.toml")
