"""The evaluator that runs candidates for real: timed beside AR and stock, every token forced.

Search: the candidate answers every search prompt; AR and stock are re-timed on a rotating part of them, in between.
What those take now against their reference times is the drift of the machine, by which the references are corrected.
A candidate near the best is timed twice. Confirmation: AR, stock and candidate answer every prompt in turns, thrice.
"""

import time
from collections.abc import Callable, Sequence

from archive.base import Attempt, Evaluation, Forced, Sample, Score
from archive.summary import median_seconds, repeat_deviations, spread
from autotune.baseline import Baseline, measure_baseline
from autotune.bench import TimedRequests
from autotune.client import RequestFailed
from autotune.descriptor import describe
from autotune.forcing import TokenForcing, Verdict
from autotune.log import logger
from autotune.prepared import PreparedPrompt, Unit, units
from space.errors import WorkerError
from space.outcome import Outcome

UNSTABLE_ABOVE = 0.10
"""A relative spread above this is not ranked."""
_WORTH_REPEATING = 0.9
"""A candidate within this share of the best so far is timed a second time."""
_MOST_DRIFT = 1.3
"""Where AR and stock take this many times longer, or shorter, than at the baseline, it is measured anew."""
_AR_PROBES = 2
_CONFIRM_REPEATS = 3


def _near(drift: float) -> bool:
    return 1 / _MOST_DRIFT <= drift <= _MOST_DRIFT


class _Broken(Exception):
    """A mismatch: ends an evaluation early. Carries the verdicts so far."""

    def __init__(self, forced: Forced) -> None:
        self.forced = forced
        super().__init__(forced.first_mismatch)


class MeasuringEvaluator:
    """Implements autotune.base.Evaluator on real worker processes."""

    def __init__(
        self,
        *,
        requests: TimedRequests,
        forcing: TokenForcing,
        baseline: Baseline,
        search: Sequence[PreparedPrompt],
        confirm: Sequence[PreparedPrompt],
        regime: int = 1,
        best_ratio: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes who answers, who judges, and the references.

        Args:
            requests: times requests.
            forcing: judges answers.
            baseline: AR and stock on the search prompts, in units of `regime`.
            search: the prompts of the search.
            confirm: the prompts of confirmation.
            regime: how many prompts are asked at once; those that do not fill a unit are left out.
            best_ratio: the best ratio to AR of earlier sessions.
            clock: measures what an evaluation costs.
        """
        self._requests = requests
        self._forcing = forcing
        self._baseline = baseline
        self._search = units(search, regime)
        self._confirm = units(confirm, regime)
        self._regime = regime
        self._best = best_ratio
        self._clock = clock

    def evaluate(self, attempt: Attempt, stage: str) -> Evaluation:
        """Runs one attempt; whatever the candidate does becomes an outcome."""
        evaluation = self._evaluate(attempt, stage)
        told = {"attempt": attempt.number, "stage": stage, "outcome": evaluation.outcome, "reason": evaluation.reason}
        logger.info("evaluated", genome=attempt.genome.id, seconds=round(evaluation.seconds, 3), **told)
        return evaluation

    def _evaluate(self, attempt: Attempt, stage: str) -> Evaluation:
        started = self._clock()
        sandbox = self._requests.sandbox(attempt.genome)

        def ended(
            outcome: Outcome, reason: str = "", forced: Forced | None = None, samples: Sequence[Sample] = ()
        ) -> Evaluation:
            return Evaluation(
                attempt=attempt.number,
                run_id=attempt.run_id,
                stage=stage,
                outcome=outcome,
                reason=reason,
                seconds=self._clock() - started,
                forced=forced,
                sandbox=sandbox,
                samples=tuple(samples),
            )

        try:
            samples, forced = self._run_search(attempt) if stage == "search" else self._run_confirm(attempt)
        except RequestFailed as failure:
            if failure.abnormal and self._search:
                self._recheck_references()
            return ended(failure.outcome, str(failure))
        except _Broken as broken:
            return ended(Outcome.MISMATCH, str(broken), broken.forced)
        finally:
            self._requests.release()
        score = self.score(samples, self._baseline if stage == "search" else None)
        if score.spread > UNSTABLE_ABOVE:
            return ended(Outcome.UNSTABLE, f"spread {score.spread:.1%} is above {UNSTABLE_ABOVE:.0%}", forced, samples)
        if stage == "search":
            self._best = max(self._best, score.ratio_ar)
        return Evaluation(
            attempt=attempt.number,
            run_id=attempt.run_id,
            stage=stage,
            outcome=Outcome.OK,
            reason="",
            seconds=self._clock() - started,
            forced=forced,
            score=score,
            descriptor=describe(samples, self._regime),
            sandbox=sandbox,
            samples=tuple(samples),
        )

    @staticmethod
    def score(samples: Sequence[Sample], baseline: Baseline | None) -> Score:
        """Ratios of summed median seconds. With a baseline, its references are corrected by the drift of AR."""
        candidate = median_seconds(samples, "candidate")
        deviations = {"candidate": repeat_deviations(samples, "candidate")}
        if baseline is None:
            own = {role: median_seconds(samples, role) for role in ("ar", "stock")}
            deviations |= {role: repeat_deviations(samples, role) for role in own}
            seconds = {role: sum(own[role][prompt] for prompt in candidate) for role in own}
        else:
            drift = baseline.drift(samples)
            deviations["references"] = [change / drift - 1.0 for change in baseline.changes(samples)]
            reference = {role: baseline.seconds(role) for role in ("ar", "stock")}
            seconds = {role: drift * sum(reference[role][prompt] for prompt in candidate) for role in reference}
        total = sum(candidate.values())
        timed = [s for s in samples if s.role == "candidate"]
        tokens = sum(s.tokens for s in timed if s.repeat == 0)
        return Score(
            ratio_ar=seconds["ar"] / total,
            ratio_stock=seconds["stock"] / total,
            spread=max(map(spread, deviations.values())),
            tau=sum(s.tokens - 1 for s in timed) / max(1, sum(s.steps for s in timed)),
            tokens_per_second=tokens / total,
            ar_tokens_per_second=tokens / seconds["ar"],
            stock_tokens_per_second=tokens / seconds["stock"],
        )

    def _run_search(self, attempt: Attempt) -> tuple[list[Sample], Forced]:
        asked, requests = self._search, self._requests
        requests.warm_up(attempt.genome, asked[0][0], self._patience(asked[0]))
        probes = {(attempt.number * _AR_PROBES + i) % len(asked) for i in range(_AR_PROBES)}
        samples: list[Sample] = []
        verdicts: list[Verdict] = []
        for index, unit in enumerate(asked):
            if index in probes:
                samples += [timed.sample for timed in requests.references("ar", unit)]
            samples += self._candidates(attempt, unit, 0, verdicts)
            if index == attempt.number % len(asked):
                samples += [timed.sample for timed in requests.references("stock", unit)]
        if not _near(self._baseline.drift(samples)):
            # The machine is another one than at the baseline, which may itself have been taken in a bad moment.
            self._baseline, _ = measure_baseline(requests, asked)
            if not _near(self._baseline.drift(samples)):
                raise RequestFailed(Outcome.UNSTABLE, "the machine changed its speed during this evaluation")
        if self.score(samples, self._baseline).ratio_ar >= _WORTH_REPEATING * self._best:
            samples += [sample for unit in asked for sample in self._candidates(attempt, unit, 1, verdicts)]
        return samples, self._forced(verdicts)

    def _run_confirm(self, attempt: Attempt) -> tuple[list[Sample], Forced]:
        self._requests.warm_up(attempt.genome, self._confirm[0][0], self._patience(self._confirm[0]))
        samples: list[Sample] = []
        verdicts: list[Verdict] = []
        for repeat in range(_CONFIRM_REPEATS):
            for index, unit in enumerate(self._confirm):
                roles = ["ar", "stock", "candidate"]
                turn = (index + repeat) % len(roles) if repeat else 0  # AR first at first: forcing needs its answer
                for role in roles[turn:] + roles[:turn]:
                    if role == "candidate":
                        samples += self._candidates(attempt, unit, repeat, verdicts)
                        continue
                    references = self._requests.references(role, unit, repeat)
                    samples += [timed.sample for timed in references]
                    if role == "ar" and len(unit) == 1:  # several at once are not one row a step
                        self._forcing.remember(unit[0], references[0].answer)
        return samples, self._forced(verdicts)

    def _candidates(self, attempt: Attempt, unit: Unit, repeat: int, verdicts: list[Verdict]) -> list[Sample]:
        """Times the answers of a unit and judges them at once: a mismatch ends the evaluation."""
        found = self._requests.candidates(attempt.genome, unit, repeat, self._patience(unit))
        for prompt, timed in zip(unit, found, strict=True):
            verdicts.append(self._forcing.judge(prompt, timed.answer, self._requests.max_tokens))
            if verdicts[-1].mismatch:
                raise _Broken(self._forcing.total(verdicts))
        return [timed.sample for timed in found]

    def _recheck_references(self) -> None:
        """After a worker that died or was killed: AR and stock must answer as before; their times are taken anew.

        WorkerError when they do not: the device is not what it was, and whatever it said next would be worthless.
        """
        unit, samples = self._search[0], list[Sample]()
        for role in ("ar", "stock"):
            for prompt, timed in zip(unit, self._requests.references(role, unit), strict=True):
                wrong = self._forcing.judge(prompt, timed.answer, self._requests.max_tokens).mismatch
                if wrong is not None:
                    raise WorkerError(f"after a candidate that ended abnormally, {role} gives other tokens: {wrong}")
                samples.append(timed.sample)
        if not _near(self._baseline.drift(samples)):
            self._baseline, _ = measure_baseline(self._requests, self._search)

    def _patience(self, unit: Unit) -> float:
        """Seconds after which a candidate hangs: several times what AR took, where that is known."""
        reference = self._baseline.seconds("ar")
        return 10.0 + 8.0 * sum(reference.get(prompt.id, 30.0) for prompt in unit)

    def _forced(self, verdicts: Sequence[Verdict]) -> Forced:
        forced = self._forcing.total(verdicts)
        if forced.first_mismatch:
            raise _Broken(forced)
        return forced
