"""A deployment: target model, hardware, workload and budget, read from a TOML file.

Its signature is the hash of its canonical content; its name is only an alias.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from space.canonical import content_hash
from space.errors import InputError, nearest

SHIPPED = Path(__file__).parent / "deployments"


MOST_REQUESTS = 64
"""The largest regime."""
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Target(_Strict):
    """The model whose tokens must come out. `source` is `embedded:smollm2-135m`, a GGUF file or a checkpoint folder."""

    source: str
    max_context: int = Field(default=2048, ge=128, le=131072)


class DrafterSource(_Strict):
    """A trained drafter for the target. `source` is `bundled:smollm2-135m-dflash` or a checkpoint folder."""

    source: str


class Hardware(_Strict):
    """The device that the deployment runs on."""

    device: Literal["cpu"]


class Workload(_Strict):
    """What is asked of the model.

    `prompts` is `shipped` or a JSON-lines file. Temperature 0 is greedy; above it tokens are drawn, from the `top_k`
    likeliest (0: from all) and of those from the likeliest that reach `top_p` together. `concurrency` is the regime:
    the number of requests at once, one a deployment at this stage.
    """

    prompts: str = "shipped"
    max_tokens: int = Field(default=64, ge=8, le=4096)
    temperature: Literal[0] | Annotated[float, Field(gt=0, le=2)] = 0
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    concurrency: tuple[Annotated[int, Field(ge=1, le=MOST_REQUESTS)]] = (1,)
    search_per_group: int = Field(default=1, ge=1, le=64)
    confirm_per_group: int = Field(default=1, ge=1, le=64)

    @model_validator(mode="after")
    def _greedy_has_no_limits(self) -> "Workload":
        if self.temperature == 0 and (self.top_k, self.top_p) != (0, 1.0):
            raise ValueError("top_k and top_p have no effect at temperature 0: give a temperature or leave them out")
        return self


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
    budget: BudgetDefaults = BudgetDefaults()

    def content(self) -> dict[str, Any]:
        """What decides a result: everything but the name, the description and the default budget."""
        content = self.model_dump(mode="json", exclude={"name", "description", "budget"})
        if self.workload.temperature == 0:
            del content["workload"]["top_k"], content["workload"]["top_p"]
        return content

    @property
    def regime(self) -> int:
        """How many requests are decoded at once."""
        return self.workload.concurrency[0]

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
            fields = dict(fields[str(part)].annotation.model_fields)
        return f"{path}: unknown key {where}{nearest(str(first['loc'][-1]), fields)} Known here: {', '.join(fields)}"
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
