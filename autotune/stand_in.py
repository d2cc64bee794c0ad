"""The stand-in pair of a planning run: a small real model whose tokens are decoded here and forced through stock.

What a genome decides about tokens is run for real, once for all genomes that decide alike; how fast the named device
would run those steps is the cost model's matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from archive.base import Forced
from autotune.bench import TimedRequests
from autotune.environment import usable_cores
from autotune.forcing import TokenForcing
from autotune.measured import STAND_IN
from autotune.prepared import PreparedPrompt
from autotune.session import Session
from engine.protocol import Generated
from space.canonical import canonical_json
from space.deployment import Deployment, find_deployment
from space.genome import Genome
from space.knobs import KnobSpace, KnobValue
from space.planned import MECHANISM_NAMES, planned_ar, planned_stock
from space.prompts import PromptSplit

_TIMEOUT = 240.0


def stand_in_deployment(planned: Deployment) -> Deployment:
    """The embedded pair on this processor with the workload of a planned deployment, one request at a time."""
    workload = planned.workload.model_copy(update={"concurrency": (1,)})
    return find_deployment(STAND_IN).model_copy(update={"workload": workload})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Answers of the stand-in, one a prompt, with the token forcing of all of them."""

    answers: tuple[tuple[PreparedPrompt, Generated], ...]
    forced: Forced


class StandIn:
    """Decodes and forces. Every decoding setting runs once a stage; RequestFailed says how one failed."""

    def __init__(self, session: Session, split: PromptSplit, space: KnobSpace, linear_path: str) -> None:
        """Starts the workers, has AR and stock answer every prompt, and measures stock's noise against itself."""
        self._prompts = {"search": session.prepare(split.search), "confirm": session.prepare(split.confirm)}
        self._machine: dict[str, KnobValue] = {"threads": usable_cores(), "linear_path": linear_path}
        self._requests: TimedRequests = session.requests()
        self._requests.warm_up_reference(self._prompts["search"][0])
        references = {stage: self._references(prompts) for stage, prompts in self._prompts.items()}
        self._forcing: TokenForcing = session.forcing(self._requests, references["search"])
        for prompt, answer in references["confirm"]:
            self._forcing.remember(prompt, answer)
        # AR of the reference path is AR: it need not be decoded a second time.
        self._known = {(stage, _key(planned_ar(space))): _exact(answers) for stage, answers in references.items()}
        for stage in self._prompts:
            self.decode(planned_stock(space), stage)

    def decode(self, genome: Genome, stage: str) -> Decoded:
        """Answers of a genome on the prompts of a stage. Its mechanisms change no token and are left out."""
        key = (stage, _key(genome))
        if key not in self._known:
            self._known[key] = self._run(Genome.of({**_decoding(genome), **self._machine}), self._prompts[stage])
        return self._known[key]

    @property
    def decodes(self) -> int:
        """How many settings were decoded so far, over both stages, AR included."""
        return len(self._known)

    def _references(self, prompts: Sequence[PreparedPrompt]) -> list[tuple[PreparedPrompt, Generated]]:
        return [(prompt, self._requests.reference("ar", prompt).answer) for prompt in prompts]

    def _run(self, genome: Genome, prompts: Sequence[PreparedPrompt]) -> Decoded:
        answers = tuple((p, self._requests.candidate(genome, p, 0, _TIMEOUT).answer) for p in prompts)
        verdicts = [self._forcing.judge(p, answer, self._requests.max_tokens) for p, answer in answers]
        return Decoded(answers=answers, forced=self._forcing.total(verdicts))


def _decoding(genome: Genome) -> dict[str, KnobValue]:
    """The knobs that decide tokens."""
    return {name: value for name, value in genome.items if name not in MECHANISM_NAMES}


def _key(genome: Genome) -> str:
    return canonical_json(_decoding(genome))


def _exact(answers: Sequence[tuple[PreparedPrompt, Generated]]) -> Decoded:
    """The reference path's own answers: every token is stock's choice by definition."""
    tokens = sum(len(answer.tokens) for _, answer in answers)
    return Decoded(answers=tuple(answers), forced=Forced(tokens=tokens, exact=tokens, near_ties=0))
