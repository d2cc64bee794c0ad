"""AR and stock on the search prompts: the references of every search evaluation, and how steady the machine is."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from archive.base import Sample
from archive.summary import by_prompt, median_seconds, spread
from autotune.bench import Timed, TimedRequests
from autotune.log import logger
from autotune.prepared import Unit

STEADY_WITHIN = 0.10
"""AR's seconds a step may spread this much over prompts: a step costs the same on all of them."""
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """AR and stock once on every search prompt, as samples."""

    samples: tuple[Sample, ...]

    def seconds(self, role: str) -> dict[str, float]:
        """Reference seconds of each prompt."""
        return median_seconds(self.samples, role)

    def unsteadiness(self) -> float:
        """Spread of AR's seconds a step over prompts; large when something else used the machine meanwhile."""
        steps = [s.verify_seconds / s.steps for s in self.samples if s.role == "ar" and s.steps]
        return spread([seconds / median(steps) - 1.0 for seconds in steps]) if steps else 0.0

    def changes(self, samples: Sequence[Sample]) -> list[float]:
        """What AR and stock take in these samples over what they took here, request by request."""
        return [
            sample.seconds / self.seconds(role)[prompt]
            for role in ("ar", "stock")
            for prompt, group in by_prompt(samples, role).items()
            for sample in group
        ]

    def drift(self, samples: Sequence[Sample]) -> float:
        """How much slower the machine is than at the time of the baseline: the median change."""
        return median(self.changes(samples))


def measure_baseline(requests: TimedRequests, asked: Sequence[Unit]) -> tuple[Baseline, list[Timed]]:
    """Times AR and stock in turns on every unit of prompts; again, at most twice, where the machine was not steady.

    Returns the baseline and AR's answers, one a prompt.
    """
    requests.warm_up_reference(asked[0][0])
    for _ in range(_TRIES):
        ar: list[Timed] = []
        stock: list[Timed] = []
        for unit in asked:
            ar += requests.references("ar", unit)
            stock += requests.references("stock", unit)
        baseline = Baseline(samples=tuple(timed.sample for timed in (*ar, *stock)))
        if baseline.unsteadiness() <= STEADY_WITHIN:
            break
        logger.warning("unsteady baseline", spread=round(baseline.unsteadiness(), 3))
    return baseline, ar
