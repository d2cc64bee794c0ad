"""What the tuner and a worker process say to each other: one JSON object a line, token ids only. No torch import.

The clock, the reference tokens and the score stay on the tuner's side.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ready(_Message):
    """A worker's first line: the model is loaded."""

    kind: Literal["ready"] = "ready"
    torch: str
    stop_ids: tuple[int, ...]


class Sampled(_Message):
    """How tokens are drawn; see engine.base.Sampling."""

    temperature: float
    top_k: int
    top_p: float
    seed: int


class Generate(_Message):
    """Decode one request with the knobs of a genome."""

    kind: Literal["generate"] = "generate"
    knobs: dict[str, str | int | float | bool]
    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    sampling: Sampled | None = None


class Asked(_Message):
    """One request of several."""

    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    sampling: Sampled | None = None


class GenerateBatch(_Message):
    """Decode several requests, at most `concurrency` at once, with the knobs of a genome."""

    kind: Literal["generate_batch"] = "generate_batch"
    knobs: dict[str, str | int | float | bool]
    requests: tuple[Asked, ...]
    concurrency: int


class Force(_Message):
    """Judge tokens through the reference path (stock workers only)."""

    kind: Literal["force"] = "force"
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    sampling: Sampled | None = None


class MeasureNoise(_Message):
    """Compare the reference path with itself at several row counts (stock workers only)."""

    kind: Literal["noise"] = "noise"
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    row_counts: tuple[int, ...]
    linear_path: str
    sampling: Sampled | None = None


class Generated(_Message):
    """New tokens, why they ended, and the step log: one entry a step."""

    kind: Literal["generated"] = "generated"
    tokens: tuple[int, ...]
    finish: Literal["stop", "length"]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    draft_seconds: tuple[float, ...]
    verify_seconds: tuple[float, ...]


class Passes(_Message):
    """One entry a target pass; see engine.batch.log.BatchLog."""

    requests: tuple[int, ...]
    rows: tuple[int, ...]
    drafted: tuple[int, ...]
    nodes: tuple[int, ...]
    accepted: tuple[int, ...]
    context: tuple[int, ...]
    draft_seconds: tuple[float, ...]
    wait_seconds: tuple[float, ...]
    verify_seconds: tuple[float, ...]
    prefill_rows: tuple[int, ...]
    prefill_seconds: tuple[float, ...]


class GeneratedBatch(_Message):
    """The answers, in the order of the requests, and the log of the passes. An answer's seconds are its shares."""

    kind: Literal["generated_batch"] = "generated_batch"
    answers: tuple[Generated, ...]
    passes: Passes


class Forced(_Message):
    """Stock's choice at each token, and the token's distance to it: in logits, or in probability for sampled tokens."""

    kind: Literal["forced"] = "forced"
    choices: tuple[int, ...]
    margins: tuple[float, ...]


class Noise(_Message):
    """See engine.stock.SelfNoise."""

    kind: Literal["noise_measured"] = "noise_measured"
    shifts: tuple[float, ...]
    flips: int
    compared: int


class Failed(_Message):
    """The request failed; the worker lives on. `outcome` is runtime or oom."""

    kind: Literal["failed"] = "failed"
    outcome: Literal["runtime", "oom"]
    reason: str


class AnyRequest(_Message):
    """Parses a request line."""

    body: Annotated[Generate | GenerateBatch | Force | MeasureNoise, Field(discriminator="kind")]


class AnyReply(_Message):
    """Parses a reply line."""

    body: Annotated[Ready | Generated | GeneratedBatch | Forced | Noise | Failed, Field(discriminator="kind")]
