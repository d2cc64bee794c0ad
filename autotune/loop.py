"""One session of a search: resume, propose, evaluate, record; when the budget is used, confirm and name the winner."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from archive.base import Attempt, Evaluation, RunRecord
from autotune.ablation import ABLATE_OPERATOR, ablations
from autotune.base import Evaluator, Observer, Proposal, Store, Trial, as_trials
from autotune.budget import FINALISTS, Budget
from autotune.history import UNJUDGED, Tried
from autotune.proposer import Proposer
from autotune.randomness import dump_state, restored
from autotune.ranking import best, fastest_first, finalists
from space.errors import InputError
from space.outcome import Outcome

# When every finalist fails its confirmation the next in rank follow, up to this many confirmations in all.
MOST_CONFIRMATIONS = 6
CONFIRM_OPERATOR = "confirm"


class Ended(StrEnum):
    """Why a session ended."""

    BUDGET = "budget"
    EXHAUSTED = "exhausted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """All trials of the run, the best of the search, and the winner: the best confirmed one, if any."""

    trials: tuple[Trial, ...]
    best: Trial | None
    winner: Trial | None
    ended: Ended


class _Session:
    """The run's history so far, and the one place that appends to it."""

    def __init__(self, store: Store, run: RunRecord, evaluator: Evaluator, proposer: Proposer, observer: Observer):
        self._store = store
        self._run = run
        self._evaluator = evaluator
        self._observer = observer
        self.proposer = proposer
        self.space = proposer.space
        self.recorded = as_trials(store.history(run.id))
        # A cancelled evaluation never happened, as far as the search is concerned: its genome is proposed again.
        self.trials = [t for t in self.recorded if t.evaluation.outcome not in UNJUDGED]
        self.rng = restored(self.trials[-1].attempt.rng_state) if self.trials else random.Random(run.seed)
        self._number = max((t.attempt.number for t in self.recorded), default=0)

    def evaluate(self, proposal: Proposal, stage: str, budget: Budget) -> Trial:
        """Runs one attempt and records it before anybody hears of it."""
        self._number += 1
        attempt = Attempt(
            number=self._number,
            run_id=self._run.id,
            genome=proposal.genome,
            parents=proposal.parents,
            operator=proposal.operator,
            rng_state=dump_state(self.rng),
        )
        self._store.begin_attempt(attempt)
        self._observer.evaluation_started(attempt)
        evaluation = self._invalid(attempt, stage) or self._evaluator.evaluate(attempt, stage)
        self._store.finish_attempt(evaluation)
        trial = Trial(attempt=attempt, evaluation=evaluation)
        if evaluation.outcome not in UNJUDGED:
            self.trials.append(trial)
        leader = self.leader()
        self._observer.evaluation_finished(
            trial, budget.left(self.trials), leader.evaluation if leader is not None else None
        )
        return trial

    def leader(self) -> Trial | None:
        """The best trial of the search stage."""
        return best(self.trials, self.space)

    def winner(self) -> Trial | None:
        """The best confirmed trial."""
        return best(self.trials, self.space, "confirm")

    def _invalid(self, attempt: Attempt, stage: str) -> Evaluation | None:
        try:
            self.space.validate(attempt.genome.knobs)
        except InputError as error:
            return Evaluation(
                attempt=attempt.number,
                run_id=attempt.run_id,
                stage=stage,
                outcome=Outcome.INVALID,
                reason=str(error),
                seconds=0.0,
            )
        return None


def _search(session: _Session, budget: Budget, stop: Callable[[], bool]) -> Ended:
    while not stop():
        if not budget.affords_search(session.trials):
            return Ended.BUDGET
        proposal = session.proposer.propose(session.trials, session.rng)
        if proposal is None:
            return Ended.EXHAUSTED
        if session.evaluate(proposal, "search", budget).evaluation.outcome in UNJUDGED:
            break  # somebody else stopped it
    return Ended.STOPPED


def _confirm(session: _Session, budget: Budget, stop: Callable[[], bool]) -> bool:
    """Confirms the finalists that were not confirmed yet; False when stopped before the end.

    Until one is proven it goes on, even on an overdrawn budget and down the ranking: without a winner a run is nothing.
    """
    first = finalists(session.trials, session.space, FINALISTS)
    others = [t for t in fastest_first(session.trials, "search") if t not in first]
    done = {t.attempt.genome.id for t in session.trials if t.evaluation.stage == "confirm"}
    for place, trial in enumerate([*first, *others][:MOST_CONFIRMATIONS]):
        optional = place >= len(first) or not budget.affords_confirmation(session.trials)
        if optional and session.winner() is not None:
            return True
        if trial.attempt.genome.id in done:
            continue
        if stop():
            return False
        again = Proposal(genome=trial.attempt.genome, parents=(), operator=CONFIRM_OPERATOR)
        if session.evaluate(again, "confirm", budget).evaluation.outcome in UNJUDGED:
            return False
    return True


def _ablate(session: _Session, budget: Budget, stop: Callable[[], bool]) -> None:
    """Measures what each choice of the winner is worth, as far as the budget goes."""
    winner = session.winner()
    if winner is None:
        return
    for _, genome in ablations(winner.attempt.genome, session.space):
        if stop() or not budget.affords_ablation(session.trials):
            return
        if genome not in Tried.of(session.trials):
            parents = (winner.attempt.genome.id,)
            session.evaluate(Proposal(genome=genome, parents=parents, operator=ABLATE_OPERATOR), "search", budget)


def run_search(
    *,
    store: Store,
    run: RunRecord,
    evaluator: Evaluator,
    proposer: Proposer,
    budget: Budget,
    observer: Observer,
    stop: Callable[[], bool],
) -> SearchResult:
    """Continues the run `run`, which the store has already, until its budget is used or `stop()` says so.

    A stopped session ends after the evaluation in flight, without confirmation; the same call resumes it. Failing
    candidates are outcomes; an exception of an operator, evaluator or store is a defect and comes through.
    """
    session = _Session(store, run, evaluator, proposer, observer)
    budget = budget.resumed(session.recorded)
    ended = _search(session, budget, stop)
    if ended is not Ended.STOPPED and not _confirm(session, budget, stop):
        ended = Ended.STOPPED
    if ended is not Ended.STOPPED:
        _ablate(session, budget, stop)
    return SearchResult(trials=tuple(session.trials), best=session.leader(), winner=session.winner(), ended=ended)
