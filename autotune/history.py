"""Views of the search's history. Nothing here is kept between calls: history is the only state of the search."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.base import Trial
from space.genome import Genome
from space.outcome import Outcome

# These say nothing about the genome: whoever stopped the evaluation did it for another reason.
UNJUDGED = frozenset({Outcome.CANCELLED, Outcome.STALE})
# A noisy or slow moment of the machine can cause these, so such a genome gets a second chance.
RETRYABLE = frozenset({Outcome.UNSTABLE, Outcome.TIMEOUT})


def searched(history: Sequence[Trial]) -> list[Trial]:
    """The judged trials of the search stage, in order."""
    return [t for t in history if t.evaluation.stage == "search" and t.evaluation.outcome not in UNJUDGED]


def measured(history: Sequence[Trial], stage: str = "search") -> list[Trial]:
    """The trials of one stage that ended ok, in order."""
    return [t for t in history if t.evaluation.stage == stage and t.evaluation.outcome is Outcome.OK]


def ratio(trial: Trial) -> float:
    """Speed over AR of a trial that ended ok; ValueError for any other trial."""
    if trial.evaluation.score is None:
        raise ValueError(f"attempt {trial.attempt.number} ended {trial.evaluation.outcome}: it has no score")
    return trial.evaluation.score.ratio_ar


@dataclass(frozen=True, slots=True)
class Tried:
    """How each genome ended, by genome id."""

    outcomes: dict[str, tuple[Outcome, ...]]

    @classmethod
    def of(cls, history: Sequence[Trial]) -> "Tried":
        """Collects the outcomes of the search stage."""
        outcomes: dict[str, tuple[Outcome, ...]] = {}
        for trial in searched(history):
            key = trial.attempt.genome.id
            outcomes[key] = (*outcomes.get(key, ()), trial.evaluation.outcome)
        return cls(outcomes)

    def __contains__(self, genome: Genome) -> bool:
        return genome.id in self.outcomes

    def allows(self, genome: Genome) -> bool:
        """True for a genome that is new, or whose only trial was unstable or timed out."""
        ended = self.outcomes.get(genome.id, ())
        return not ended or (len(ended) == 1 and ended[0] in RETRYABLE)
