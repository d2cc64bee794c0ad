"""What the raw samples of an evaluation say, one line for each role."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from archive.base import Sample

ROLES = ("ar", "stock", "candidate")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSummary:
    """One role of one evaluation. `tokens_per_second` is the median over repeats of all tokens by all seconds.

    `spread` is 1.4826 x MAD over the median, as a fraction; one repeat has none to show and gives 0. `tau` counts
    tokens a step. Seconds are totals over requests and repeats.
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


def relative_spread(values: Sequence[float]) -> float:
    """1.4826 x median absolute deviation over the median: the standard deviation of normal noise, as a fraction."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values) / middle


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
        spread=relative_spread(speeds),
        tau=tokens / sum(sample.steps for sample in samples),
        drafted=sum(sample.drafted for sample in samples),
        accepted=sum(sample.accepted for sample in samples),
        draft_seconds=sum(sample.draft_seconds for sample in samples),
        verify_seconds=sum(sample.verify_seconds for sample in samples),
    )


def summarise(samples: Sequence[Sample]) -> tuple[RoleSummary, ...]:
    """One summary for each role that has samples, in the order ar, stock, candidate."""
    by_role = {role: [sample for sample in samples if sample.role == role] for role in ROLES}
    return tuple(_of_role(role, members) for role, members in by_role.items() if members)
