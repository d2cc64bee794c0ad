"""Tree-structured Parzen estimator (Bergstra et al., 2011) by Optuna's ask; the one module that imports optuna.

Each call builds a study in memory from the history, so the search keeps no state besides the history. The sampler is
seeded from the search's generator.
"""

import random
import warnings
from collections.abc import Sequence
from typing import cast

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.base import Proposal, Trial
from autotune.domains import levels, nearest_index
from autotune.history import Tried, measured, ratio, searched
from space.genome import Genome
from space.knobs import ChoiceDomain, FloatDomain, IntDomain, Knob, KnobSpace, KnobValue
from space.outcome import Outcome

# Below this many speeds the estimator knows less than the evolutionary operators.
STARTUP = 6
# Questions to one study before the proposer is told of a duplicate: the study costs more than a question.
ASKS = 6
# Unstable is noise of the machine and says nothing about the knobs; invalid knobs do not fit the study's domains.
UNTOLD = frozenset({Outcome.UNSTABLE, Outcome.INVALID})


def _distribution(knob: Knob) -> BaseDistribution:
    domain = knob.domain
    if isinstance(domain, IntDomain):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    if isinstance(domain, FloatDomain):
        return FloatDistribution(domain.low, float(levels(domain)[-1]), step=domain.step)
    return CategoricalDistribution(domain.options)


def _on_grid(knob: Knob, value: KnobValue) -> KnobValue:
    if isinstance(knob.domain, ChoiceDomain):
        return value
    return levels(knob.domain)[nearest_index(knob.domain, value)]


def _told(trial: Trial, space: KnobSpace, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    """A trial for the study. A failure has no value: Optuna ranks pruned trials behind all that have one."""
    params = {name: _on_grid(space.knob(name), value) for name, value in trial.attempt.genome.items}
    ok = trial.evaluation.outcome is Outcome.OK
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE if ok else TrialState.PRUNED,
        value=ratio(trial) if ok else None,
        params=params,
        distributions={name: distributions[name] for name in params},
    )


def _study(space: KnobSpace, history: Sequence[Trial], seed: int) -> optuna.Study:
    with warnings.catch_warnings():
        # `group` keeps each branch of conditional knobs in a joint model of its own; Optuna calls it experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {knob.name: _distribution(knob) for knob in space.knobs}
    telling = [t for t in searched(history) if t.evaluation.outcome not in UNTOLD]
    study.add_trials([_told(trial, space, distributions) for trial in telling])
    return study


def _suggest(trial: optuna.Trial, knob: Knob) -> KnobValue:
    domain = knob.domain
    if isinstance(domain, IntDomain):
        return trial.suggest_int(knob.name, domain.low, domain.high, log=domain.log)
    if isinstance(domain, FloatDomain):
        value = trial.suggest_float(knob.name, domain.low, float(levels(domain)[-1]), step=domain.step)
        return _on_grid(knob, value)
    # Optuna's type allows None as an option; a knob has none.
    return cast(KnobValue, trial.suggest_categorical(knob.name, domain.options))


def _ask(study: optuna.Study, space: KnobSpace) -> Genome:
    trial = study.ask()
    knobs: dict[str, KnobValue] = {}
    for knob in space.knobs:
        if space.is_active(knob, knobs):
            knobs[knob.name] = _suggest(trial, knob)
    return Genome.complete(space, knobs)


class Tpe:
    """Proposes where good settings are denser than bad and failed ones."""

    name = "tpe"

    def propose(self, space: KnobSpace, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns the study's first answer that may be tried, else its last; None below STARTUP speeds."""
        if len(measured(history)) < STARTUP:
            return None
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            study, tried = _study(space, history, rng.getrandbits(32)), Tried.of(history)
            for _ in range(ASKS):
                genome = _ask(study, space)
                if tried.allows(genome):
                    break
        finally:
            optuna.logging.set_verbosity(verbosity)
        return Proposal(genome=genome, parents=(), operator=self.name)
