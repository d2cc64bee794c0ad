"""The vocabulary of the engine, without torch: settings, requests, generations, and the drafter's contract."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from space.errors import EngineError


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
    threads: int = 1
    linear_path: str = "plain"
    prefill_chunk: int = 256

    @classmethod
    def from_knobs(cls, knobs: Mapping[str, str | int | float | bool]) -> "Settings":
        """Builds settings from a genome's knobs; EngineError for a knob that the engine does not have."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(knobs) - known)
        if unknown:
            raise EngineError(f"the engine has no knob {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        return cls(**knobs)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Prompt token ids, and when to stop: at `max_tokens` new tokens or right after one of `stop_ids`."""

    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...] = ()


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


class Drafter(Protocol):
    """Proposes a continuation. One instance serves one request; it sees committed tokens only."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes newly committed tokens: the prompt first, then each step's."""

    def propose(self, limit: int) -> list[int]:
        """Returns at most `limit` drafted tokens, most likely chain; may be empty."""
