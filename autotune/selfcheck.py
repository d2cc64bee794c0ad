"""Whether a drafter behaves like itself.

What decides acceptance is convention: which layer a tap id means, which row is the mask, which row drafts which
position, in which order rotary halves lie. A drafter that is wired against its training still gives the target's
tokens, only few of its drafts hold. So its tau on a few built-in prompts is compared with what its training record
says or, without one, with n-gram lookup on the same text.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.protocol import Generated
from space.genome import Genome
from space.knobs import KnobSpace, KnobValue

TOKENS = 32
"""New tokens a prompt."""

PROMPTS = 3
_LENGTH = 7
_OF_RECORD = 0.6
"""Of the lowest recorded tau: 32 tokens are the hard beginning of an answer. Measured with the bundled drafter of
SmolLM2-135M, whose lowest record is 2.47: 1.94 as it is; rows shifted by one 1.18, a wrong mask row 1.15, another RoPE
order 1.29. Tap ids off by one cost this pair little (1.69 and 1.90), which so few tokens cannot tell from chance."""
_OVER_NGRAM = 1.2
"""Of what n-gram lookup reaches where there is no record; 1.19 on that text."""

_TAPS, _ROPE = "target tap ids off by one", "another RoPE order"
_PARALLEL = ("rows shifted by one", "a wrong mask row", _TAPS, _ROPE)
_CAUSES: Mapping[str, tuple[str, ...]] = {
    "eagle3": (_TAPS, "the other meaning of norm_output or norm_before_residual", _ROPE),
    "small": ("a tokenizer that is not the target's", _ROPE),
}

Ask = Callable[[Mapping[str, KnobValue], int], Sequence[Generated]]
"""Answers the built-in prompts with these knobs and so many tokens each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """What a drafter reached, and the least that it should have: `origin` says whose figure that is."""

    kind: str
    tau: float
    least: float
    origin: str

    @property
    def passed(self) -> bool:
        """True where the drafter reached what was expected."""
        return self.tau >= self.least

    def warning(self) -> str:
        """One line: the figures, and what usually is the cause."""
        causes = ", ".join(_CAUSES.get(self.kind, _PARALLEL))
        return (
            f"the {self.kind} drafter behaves as if it were wired wrongly: tau {self.tau:.2f} on built-in prompts, at "
            f"least {self.least:.2f} is expected ({self.origin}); tokens stay exact; likely: {causes}"
        )


def tau(answers: Sequence[Generated]) -> float:
    """Tokens committed a step, bonus token included; the first token of an answer comes from the prefill."""
    return sum(len(answer.tokens) - 1 for answer in answers) / max(1, sum(len(answer.drafted) for answer in answers))


def recorded_tau(folder: Path) -> float | None:
    """The lowest tau of the evaluation sets in a checkpoint's training.json; None where it records none."""
    path = folder / "training.json"
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # a note of whoever trained it, in a form of their own
    sections = [v for k, v in record.items() if k.startswith("evaluation")] if isinstance(record, dict) else []
    scores = [score for sets in sections if isinstance(sets, dict) for score in sets.values()]
    found = [score.get("tau") for score in scores if isinstance(score, dict)]
    return min((value for value in found if isinstance(value, float)), default=None)


def self_check(ask: Ask, space: KnobSpace, kind: str, folder: Path) -> SelfCheck:
    """Has the drafter of `folder` answer the built-in prompts.

    Args:
        ask: sends them to a worker.
        space: the deployment's knobs.
        kind: the drafter's kind, an option of the knob `drafter`.
        folder: its checkpoint.
    """
    reached = tau(ask(Genome.complete(space, {"drafter": kind, "draft_length": _LENGTH}).knobs, TOKENS))
    recorded = recorded_tau(folder)
    if recorded is not None:
        origin = f"{_OF_RECORD} x the lowest in its training record"
        return SelfCheck(kind=kind, tau=reached, least=_OF_RECORD * recorded, origin=origin)
    lookup: dict[str, KnobValue] = {"drafter": "ngram", "draft_length": _LENGTH, "ngram_max": 3, "ngram_min": 1}
    copied = tau(ask(Genome.complete(space, lookup).knobs, TOKENS))
    origin = f"{_OVER_NGRAM} x n-gram lookup on the same text"
    return SelfCheck(kind=kind, tau=reached, least=_OVER_NGRAM * copied, origin=origin)
