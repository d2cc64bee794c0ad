"""What the raw samples of an evaluation say, one line for each role."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from archive.base import Sample

ROLES = ("ar", "stock", "candidate")
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSummary:
    """One role of one evaluation. `tokens_per_second` is the median over repeats of all tokens by all seconds.

    `spread` is 1.4826 x the median absolute deviation of repeats from their prompt's median, as a fraction; one repeat
    has none to show and gives 0. `tau` counts tokens a step; the first token of an answer comes from the prefill, not
    from a step. Seconds are totals over requests and repeats.
    """

    role: str
    repeats: int
    requests: int
    tokens: int
    seconds: float
    tokens_per_second: float
    spread: float
    tau: float
    drafted: int
    accepted: int
    draft_seconds: float
    verify_seconds: float


def by_prompt(samples: Iterable[Sample], role: str) -> dict[str, list[Sample]]:
    """The samples of one role, by prompt, in order."""
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.role == role:
            grouped.setdefault(sample.prompt_id, []).append(sample)
    return grouped


def median_seconds(samples: Iterable[Sample], role: str) -> dict[str, float]:
    """Median seconds of each prompt, of one role."""
    return {prompt: statistics.median(s.seconds for s in group) for prompt, group in by_prompt(samples, role).items()}


def repeat_deviations(samples: Iterable[Sample], role: str) -> list[float]:
    """How far each repeat of a prompt lies from the prompt's median seconds, as fractions; single ones say nothing."""
    groups = [[s.seconds for s in group] for group in by_prompt(samples, role).values() if len(group) > 1]
    return [seconds / statistics.median(group) - 1.0 for group in groups for seconds in group]


def spread(deviations: Sequence[float]) -> float:
    """1.4826 x the median of absolute deviations: the standard deviation of normal noise, as a fraction."""
    return MAD_TO_SIGMA * statistics.median(abs(d) for d in deviations) if deviations else 0.0


def _of_role(role: str, samples: Sequence[Sample]) -> RoleSummary:
    repeats = sorted({sample.repeat for sample in samples})
    speeds = []
    for repeat in repeats:
        part = [sample for sample in samples if sample.repeat == repeat]
        speeds.append(sum(sample.tokens for sample in part) / sum(sample.seconds for sample in part))
    tokens = sum(sample.tokens for sample in samples)
    return RoleSummary(
        role=role,
        repeats=len(repeats),
        requests=len(samples),
        tokens=tokens,
        seconds=sum(sample.seconds for sample in samples),
        tokens_per_second=statistics.median(speeds),
        spread=spread(repeat_deviations(samples, role)),
        tau=(tokens - len(samples)) / max(1, sum(sample.steps for sample in samples)),
        drafted=sum(sample.drafted for sample in samples),
        accepted=sum(sample.accepted for sample in samples),
        draft_seconds=sum(sample.draft_seconds for sample in samples),
        verify_seconds=sum(sample.verify_seconds for sample in samples),
    )


def summarise(samples: Sequence[Sample]) -> tuple[RoleSummary, ...]:
    """One summary for each role that has samples, in the order ar, stock, candidate."""
    by_role = {role: [sample for sample in samples if sample.role == role] for role in ROLES}
    return tuple(_of_role(role, members) for role, members in by_role.items() if members)
