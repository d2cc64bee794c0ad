"""Robust statistics of timings: medians, spreads, and the drift of the machine against a reference."""

from collections.abc import Iterable, Sequence
from statistics import median

from archive.base import Sample

MAD_TO_SIGMA = 1.4826
"""Scales the median absolute deviation to a standard deviation under normal noise."""


def relative_deviations(groups: Iterable[Sequence[float]]) -> list[float]:
    """Deviations of each value from the median of its group, as fractions; groups of one say nothing."""
    return [value / median(group) - 1.0 for group in groups if len(group) > 1 for value in group]


def spread(deviations: Sequence[float]) -> float:
    """1.4826 x the median of absolute deviations; 0.0 when there are none."""
    return MAD_TO_SIGMA * median(abs(d) for d in deviations) if deviations else 0.0


def by_prompt(samples: Iterable[Sample], role: str) -> dict[str, list[Sample]]:
    """The samples of one role, by prompt, in order."""
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.role == role:
            grouped.setdefault(sample.prompt_id, []).append(sample)
    return grouped


def median_seconds(samples: Iterable[Sample], role: str) -> dict[str, float]:
    """Median seconds of each prompt, of one role."""
    return {prompt: median(s.seconds for s in group) for prompt, group in by_prompt(samples, role).items()}


def seconds_per_token(samples: Iterable[Sample], role: str) -> dict[str, float]:
    """Median seconds a token of each prompt, of one role."""
    return {prompt: median(s.seconds / s.tokens for s in group) for prompt, group in by_prompt(samples, role).items()}
