"""The vocabulary of the engine, without torch: settings, requests, generations, and the drafter's contract."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Protocol

from space.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one request is decoded: the knobs of a genome, typed. Defaults are AR."""

    drafter: str = "none"
    draft_length: int = 0
    ngram_max: int = 5
    ngram_min: int = 5
    suffix_depth: int = 24
    suffix_min_match: int = 1
    suffix_factor: float = 1.0
    min_probability: float = 0.1
    markov_head: bool = True
    markov_candidates: int = 64
    confidence: float = 0.0
    draft_vocabulary: int = 0
    suffix_first: int = 0
    threads: int = 1
    linear_path: str = "plain"
    prefill_chunk: int = 256
    packing: str = "all"
    node_budget: int = 32
    packing_cost: float = 0.05
    length_schedule: str = "fixed"
    schedule_cost: float = 0.05
    hysteresis: float = 0.05
    pipeline: str = "off"

    @classmethod
    def from_knobs(cls, knobs: Mapping[str, str | int | float | bool]) -> "Settings":
        """Builds settings from a genome's knobs; EngineError for a knob that the engine does not have."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(knobs) - known)
        if unknown:
            raise EngineError(f"the engine has no knob {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        return cls(**knobs)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen from the target's logits: its argmax at temperature 0, else a draw.

    Args:
        temperature: logits are divided by it.
        top_k: only the k likeliest tokens may be drawn; 0 means all.
        top_p: only the likeliest tokens whose probabilities together reach it may be drawn, after top_k.
        seed: of the request's random numbers, of which each position in the sequence has its own. Requests that
            are to be independent of each other need different seeds.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses what means nothing: EngineError names the field, its value and what is allowed."""
        if not 0 <= self.temperature < float("inf"):
            raise EngineError(f"temperature {self.temperature}: give 0 (greedy) or a positive number")
        if self.top_k < 0:
            raise EngineError(f"top_k {self.top_k}: give 0 (all tokens) or a positive number")
        if not 0 < self.top_p <= 1:
            raise EngineError(f"top_p {self.top_p}: give a number above 0, at most 1")
        if not 0 <= self.seed < 2**64:
            raise EngineError(f"seed {self.seed}: give a whole number from 0 to 2^64 - 1")


GREEDY = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Prompt token ids, how tokens are chosen, and when to stop.

    It stops at `max_tokens` new tokens or right after one of `stop_ids`.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    sampling: Sampling = GREEDY

    def check(self, max_context: int) -> None:
        """Raises EngineError for an empty prompt, no token asked for, or more of both than `max_context` allows."""
        if not self.prompt:
            raise EngineError("the prompt is empty: give at least one token")
        if self.max_tokens < 1:
            raise EngineError(f"max_tokens {self.max_tokens}: ask for at least one token")
        needed = len(self.prompt) + self.max_tokens
        if needed > max_context:
            raise EngineError(
                f"{len(self.prompt)} prompt tokens and {self.max_tokens} new ones need {needed} positions; "
                f"max_context allows {max_context}"
            )


@dataclass(slots=True)
class StepLog:
    """One entry a step, in parallel lists: drafted tokens, accepted tokens, seconds of draft and of verify."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    verify_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """New tokens (a stop token included), why it ended (`stop` or `length`), and the step log."""

    tokens: tuple[int, ...]
    finish: str
    log: StepLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """What one pass of a parallel drafter says about the next K positions; k candidates a position, best first.

    ids: [K, k] int64 target token ids.
    edges: [K, k, k] float32; edges[j, a, c] is the log-probability of candidate c at position j when candidate a of
        position j - 1 stands before it. Position 0 stands after the committed text: its row 0 counts. A drafter
        without pair scores has [K, 1, k]: what stands before makes no difference to it.
    confidence: [K] float32, or None without a trained head for it: the probability that the target accepts the greedy
        walk's candidate of position j once it accepted all before.
    """

    ids: "Tensor"
    edges: "Tensor"
    confidence: "Tensor | None" = None


class Drafter(Protocol):
    """Proposes a continuation. One instance serves one request; it sees committed tokens only."""

    @property
    def taps(self) -> tuple[int, ...]:
        """0-based target layers whose outputs it reads, ascending; empty for a drafter that reads text only."""

    def extend(self, tokens: Sequence[int], taps: "Tensor | None" = None) -> None:
        """Takes newly committed tokens: the prompt with the first new token, then each step's.

        `taps` are the tapped outputs, [rows, len(self.taps) * hidden], of the positions that the target processed for
        them: after each call, of every committed token but the newest. None for a drafter without taps.
        """

    def propose(self, limit: int) -> list[int]:
        """Returns at most `limit` drafted tokens, most likely chain; may be empty."""


class ParallelDrafter(Drafter, Protocol):
    """A drafter that scores several candidates a position in one pass: what trees are built from."""

    def lattice(self, limit: int, width: int, path: Sequence[int] = ()) -> Lattice:
        """Scores at most `limit` positions with at most `width` candidates each; may have no positions.

        A `path` of drafted tokens is taken as if it were committed: the positions are those behind it. Whatever the
        drafter would have known of a committed path, such as the target's taps, it does without.
        """
