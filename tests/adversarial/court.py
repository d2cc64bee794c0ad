"""Judges a candidate's worker module through the evaluator of the main job."""

import contextlib
from dataclasses import replace
from functools import cached_property

from archive.base import Attempt
from autotune.client import WorkerClient
from autotune.environment import packs_weights
from autotune.measure import MeasuringEvaluator
from autotune.session import Session, deployment_prompts
from space.catalog import cpu_space
from space.deployment import Deployment
from space.genome import Genome

SPACE = cpu_space(cores=1, packs=packs_weights())
DRAFTS_OFTEN = Genome.complete(SPACE, {"draft_length": 8, "ngram_max": 3, "ngram_min": 1})


def attempt(genome: Genome = DRAFTS_OFTEN, number: int = 1) -> Attempt:
    return Attempt(number=number, run_id="court", genome=genome, parents=(), operator="test", rng_state="")


class Court:
    """One session: stock is started and measured once; each candidate gets a process of its own."""

    def __init__(self, session: Session, deployment: Deployment) -> None:
        self._session = session
        self._split = deployment_prompts(deployment)[1]

    @cached_property
    def _evaluator(self) -> MeasuringEvaluator:
        return self._session.evaluator(self._split)

    @contextlib.contextmanager
    def evaluator(self, module: str):
        """The evaluator with another candidate's process in the place of the session's own."""
        with WorkerClient(replace(self._session._candidate._launch, module=module)) as candidate:
            self._evaluator._requests._candidate = candidate
            yield self._evaluator

    def judge(self, module: str, genome: Genome = DRAFTS_OFTEN, stage: str = "search"):
        with self.evaluator(module) as evaluator:
            return evaluator.evaluate(attempt(genome), stage)
