"""The contracts of the search: what an evaluator, an operator and an observer promise. No torch here."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from archive.base import Attempt, Evaluation, RunRecord
from space.genome import Genome
from space.knobs import KnobSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An attempt with its evaluation: one line of the search's history."""

    attempt: Attempt
    evaluation: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A genome to try, the ids of the genomes it came from, and the operator that made it."""

    genome: Genome
    parents: tuple[str, ...]
    operator: str


class Operator(Protocol):
    """Makes a genome from what is known. Pure: the same history and generator state give the same proposal."""

    name: str

    def propose(self, space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns a proposal whose genome is valid in `space`; None while the history gives it nothing to work on."""


class Evaluator(Protocol):
    """Runs a genome for real (or from a recording), forces its tokens, and says how it ended."""

    def evaluate(self, attempt: Attempt, stage: str) -> Evaluation:
        """Evaluates one attempt at stage `search` or `confirm`. Never raises for a failing candidate."""


class Store(Protocol):
    """What the loop needs of an archive; archive/store.py implements it."""

    def begin_run(self, run: RunRecord) -> None:
        """Records a run."""

    def begin_attempt(self, attempt: Attempt) -> None:
        """Records an attempt as in flight, in its own transaction.

        After a kill the attempt in flight has no evaluation; the resumed search begins the same number again.
        """

    def finish_attempt(self, evaluation: Evaluation) -> None:
        """Records the evaluation with its samples, in one transaction; the attempt is done."""

    def history(self, run_id: str) -> list[tuple[Attempt, Evaluation]]:
        """The finished attempts of a run, in order of attempt number."""


class Observer(Protocol):
    """Watches a run: the terminal, a plain log, a test."""

    def evaluation_started(self, attempt: Attempt) -> None:
        """An attempt begins."""

    def evaluation_finished(self, trial: Trial, budget_left: str, best: Evaluation | None) -> None:
        """An attempt ended; `budget_left` is ready to print, such as `1m40s, 180 evals`."""


def as_trials(history: Sequence[tuple[Attempt, Evaluation]]) -> list[Trial]:
    """Pairs become trials."""
    return [Trial(attempt=attempt, evaluation=evaluation) for attempt, evaluation in history]
