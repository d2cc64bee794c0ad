"""The records that the archive keeps. Append-only; elites are a view that can be rebuilt from them."""

from dataclasses import dataclass
from enum import StrEnum

from space.genome import Genome
from space.outcome import Outcome

Stage = str  # "search" or "confirm"


class Basis(StrEnum):
    """Where the seconds of a run come from. Runs of different bases are never compared, ranked or continued together.

    Measured seconds were timed here. Predicted ones are those of a cost model of another device, for tokens that a
    stand-in model emitted.
    """

    MEASURED = "measured"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed request. `role` is ar, stock or candidate; seconds are wall time seen from outside the engine."""

    prompt_id: str
    role: str
    repeat: int
    tokens: int
    seconds: float
    steps: int
    drafted: int
    accepted: int
    draft_seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """Token forcing of one evaluation: tokens checked, near-ties within the noise, and the first mismatch."""

    tokens: int
    exact: int
    near_ties: int
    first_mismatch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Ratios of total seconds, medians over repeats. `spread` is 1.4826 x MAD over the median, as a fraction."""

    ratio_ar: float
    ratio_stock: float
    spread: float
    tau: float
    tokens_per_second: float
    ar_tokens_per_second: float
    stock_tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Where an evaluation lies in the MAP-Elites grid: raw values; the archive derives the cell (version, edges)."""

    regime: int
    gap: str
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a run ran. A stored score of another environment is a seed, never a result."""

    host: str
    cpu: str
    cores: int
    memory_gib: float
    python: str
    torch: str
    system: str
    code: str

    # `code` is the content hash of space/, engine/ and kernels/.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One search. `deployment` and `space` are canonical JSON: what a resumed run must equal.

    `prompts` is the content hash of the prompts of search and confirmation.
    """

    id: str
    deployment_name: str
    deployment: str
    space: str
    prompts: str
    seed: int
    environment: Environment
    basis: Basis = Basis.MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A genome to try. `rng_state` is the search generator's state after it was proposed."""

    number: int
    run_id: str
    genome: Genome
    parents: tuple[str, ...]
    operator: str
    rng_state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How an attempt ended. score is there exactly when the outcome is ok.

    `sandbox` is the level at which the candidate was confined, `none` for the project's own code with other knobs;
    None when nothing was run, and in records of before there was a sandbox.
    """

    attempt: int
    run_id: str
    stage: Stage
    outcome: Outcome
    reason: str
    seconds: float
    forced: Forced | None = None
    score: Score | None = None
    descriptor: Descriptor | None = None
    sandbox: str | None = None
    samples: tuple[Sample, ...] = ()
