"""The evaluator of a planning run: tokens and forcing by the stand-in, seconds by the cost model, one regime at a time.

All requests of a batch are taken to behave like the one that was decoded. A sample holds one request's tokens and
steps, and the seconds in which the named device would have run a whole batch of such requests.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from archive.base import Attempt, Descriptor, Evaluation, Sample, Score
from autotune.client import RequestFailed
from autotune.costmodel import CostModel, Load
from autotune.gaps import GapReport, gap_report
from autotune.mechanisms import planned_system
from autotune.stand_in import Decoded, StandIn
from engine.protocol import Generated
from space.genome import Genome
from space.knobs import KnobSpace
from space.outcome import Outcome
from space.planned import planned_ar, planned_stock

MEAN_CONTEXT = 256.0
"""Committed tokens of a request at which gaps are priced."""

_TEXT_DRAFTERS = ("none", "ngram", "suffix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds of one answer's steps on the named device, the prefill included in `seconds` alone."""

    seconds: float
    draft_seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Turns decoded steps into seconds for one deployment and regime. `stand_in_vocabulary` is the stand-in's own."""

    model: CostModel
    regime: int
    stand_in_vocabulary: int

    def of(self, genome: Genome) -> CostModel:
        """The cost model of the system that a genome stands for."""
        return replace(self.model, system=planned_system(genome.knobs, self.model.hardware))

    def load(self, genome: Genome, *, drafted: int, context: float, committed: float) -> Load:
        """The load of one step in which so many tokens were drafted."""
        knobs = genome.knobs
        drafter, length = knobs["drafter"], int(knobs.get("draft_length", 0))
        filled = knobs["verify_rows"] == "filled" and drafter != "none"
        if drafter not in _TEXT_DRAFTERS and self.model.drafter is not None:
            length = min(length, self.model.drafter.longest)
        vocabulary = int(knobs.get("draft_vocabulary", 0)) or self.stand_in_vocabulary
        return Load(
            batch=self.regime,
            nodes=max(drafted, length) if filled else drafted,
            context=context,
            committed=committed,
            neural=drafter not in _TEXT_DRAFTERS and drafted > 0,
            draft_head=vocabulary / self.stand_in_vocabulary,
        )

    def predict(self, genome: Genome, prompt: int, answer: Generated) -> Prediction:
        """Seconds of one answer after a prompt of so many tokens."""
        model, context = self.of(genome), prompt + 1.0
        total, draft, verify = model.prefill(self.regime, prompt), 0.0, 0.0
        for drafted, accepted in zip(answer.drafted, answer.accepted, strict=True):
            load = self.load(genome, drafted=drafted, context=context, committed=accepted + 1.0)
            step = model.step(load)
            total, draft, verify = total + step.total, draft + step.draft, verify + step.verify
            context += accepted + 1
        return Prediction(seconds=total, draft_seconds=draft, verify_seconds=verify)

    def samples(self, genome: Genome, role: str, decoded: Decoded) -> list[Sample]:
        """One sample a prompt."""
        return [self._sample(genome, role, prompt.id, len(prompt.tokens), answer) for prompt, answer in decoded.answers]

    def _sample(self, genome: Genome, role: str, name: str, prompt: int, answer: Generated) -> Sample:
        predicted = self.predict(genome, prompt, answer)
        return Sample(
            prompt_id=name,
            role=role,
            repeat=0,
            tokens=len(answer.tokens),
            seconds=predicted.seconds,
            steps=len(answer.drafted),
            drafted=sum(answer.drafted),
            accepted=sum(answer.accepted),
            draft_seconds=predicted.draft_seconds,
            verify_seconds=predicted.verify_seconds,
        )

    def gaps(self, genome: Genome, samples: Sequence[Sample], headroom: float | None) -> GapReport:
        """The gaps of a genome at the mean step of its samples.

        `headroom` is the factor by which the neural drafter's candidates could raise tau; a text drafter has none.
        """
        steps = max(1, sum(sample.steps for sample in samples))
        tau = 1.0 + sum(sample.accepted for sample in samples) / steps
        drafted = round(sum(sample.drafted for sample in samples) / steps)
        load = self.load(genome, drafted=drafted, context=MEAN_CONTEXT, committed=tau)
        ceiling = tau * headroom if load.neural and headroom is not None else None
        return gap_report(self.of(genome), load, ceiling)


def tau_of(samples: Sequence[Sample]) -> float:
    """Tokens committed a step; the first token of an answer comes from the prefill."""
    return sum(sample.tokens - 1 for sample in samples) / max(1, sum(sample.steps for sample in samples))


class PredictedEvaluator:
    """Implements autotune.base.Evaluator for one regime of a planned deployment."""

    def __init__(
        self,
        *,
        predictor: Predictor,
        stand_in: StandIn,
        space: KnobSpace,
        headroom: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`headroom` is what the drafter's candidates allow over what it accepts, where that is known."""
        self._predictor = predictor
        self._stand_in = stand_in
        self._fixed = {"ar": planned_ar(space), "stock": planned_stock(space)}
        self._headroom = headroom
        self._clock = clock

    def evaluate(self, attempt: Attempt, stage: str) -> Evaluation:
        """Decodes, forces and prices one attempt; whatever the stand-in does with it becomes an outcome."""
        started = self._clock()
        empty = Evaluation(
            attempt=attempt.number,
            run_id=attempt.run_id,
            stage=stage,
            outcome=Outcome.RUNTIME,
            reason="",
            seconds=0.0,
        )
        try:
            decoded = self._stand_in.decode(attempt.genome, stage)
        except RequestFailed as failure:
            return replace(empty, outcome=failure.outcome, reason=str(failure), seconds=self._clock() - started)
        forced = decoded.forced
        if forced.first_mismatch is not None:
            return replace(
                empty,
                outcome=Outcome.MISMATCH,
                reason=forced.first_mismatch,
                forced=forced,
                seconds=self._clock() - started,
            )
        samples = self._predictor.samples(attempt.genome, "candidate", decoded)
        references = {role: self._reference(role, stage) for role in self._fixed}
        return replace(
            empty,
            outcome=Outcome.OK,
            forced=forced,
            score=score_of(samples, references["ar"], references["stock"], self._predictor.regime),
            descriptor=self._describe(attempt.genome, samples),
            samples=(*references["ar"], *references["stock"], *samples),
            seconds=self._clock() - started,
        )

    def _reference(self, role: str, stage: str) -> list[Sample]:
        genome = self._fixed[role]
        return self._predictor.samples(genome, role, self._stand_in.decode(genome, stage))

    def _describe(self, genome: Genome, samples: Sequence[Sample]) -> Descriptor:
        report = self._predictor.gaps(genome, samples, self._headroom)
        width = sum(sample.drafted for sample in samples) / sum(sample.tokens for sample in samples)
        return Descriptor(regime=self._predictor.regime, gap=report.dominant.axis, width=width)


def score_of(samples: Sequence[Sample], ar: Sequence[Sample], stock: Sequence[Sample], regime: int) -> Score:
    """Ratios of summed seconds; tokens a second of the whole batch. A model repeats itself: there is no spread."""
    seconds = {name: sum(s.seconds for s in group) for name, group in (("own", samples), ("ar", ar), ("stock", stock))}
    tokens = regime * sum(sample.tokens for sample in samples)
    return Score(
        ratio_ar=seconds["ar"] / seconds["own"],
        ratio_stock=seconds["stock"] / seconds["own"],
        spread=0.0,
        tau=tau_of(samples),
        tokens_per_second=tokens / seconds["own"],
        ar_tokens_per_second=tokens / seconds["ar"],
        stock_tokens_per_second=tokens / seconds["stock"],
    )
