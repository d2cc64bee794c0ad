"""The evaluator that runs candidates for real: timed beside AR and stock, every token forced.

Search: the candidate answers every search prompt; AR and stock are re-timed on a rotating part of them, in between.
What those take now against their reference times is the drift of the machine, by which the references are corrected.
A candidate near the best is timed twice. Confirmation: AR, stock and candidate answer every prompt in turns, thrice.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from archive.base import Attempt, Evaluation, Forced, Sample, Score
from archive.summary import median_seconds, repeat_deviations, spread
from autotune.bench import TimedRequests
from autotune.client import RequestFailed
from autotune.descriptor import describe
from autotune.forcing import TokenForcing, Verdict
from autotune.prepared import PreparedPrompt
from space.outcome import Outcome

UNSTABLE_ABOVE = 0.10
"""A relative spread above this is not ranked."""
_WORTH_REPEATING = 0.9
"""A candidate within this share of the best so far is timed a second time."""
_AR_PROBES = 2
_CONFIRM_REPEATS = 3
_REGIME = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """AR and stock on the search prompts at the start of a session, as samples."""

    samples: tuple[Sample, ...]

    def seconds(self, role: str) -> dict[str, float]:
        """Reference seconds of each prompt."""
        return median_seconds(self.samples, role)


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
        best_ratio: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`best_ratio` is the best ratio to AR of earlier sessions; the clock measures what an evaluation costs."""
        self._requests = requests
        self._forcing = forcing
        self._baseline = baseline
        self._search = search
        self._confirm = confirm
        self._best = best_ratio
        self._clock = clock

    def evaluate(self, attempt: Attempt, stage: str) -> Evaluation:
        """Runs one attempt; whatever the candidate does becomes an outcome."""
        started = self._clock()

        def ended(outcome: Outcome, reason: str = "", forced: Forced | None = None) -> Evaluation:
            return Evaluation(
                attempt=attempt.number,
                run_id=attempt.run_id,
                stage=stage,
                outcome=outcome,
                reason=reason,
                seconds=self._clock() - started,
                forced=forced,
            )

        try:
            samples, forced = self._run_search(attempt) if stage == "search" else self._run_confirm(attempt)
        except RequestFailed as failure:
            return ended(failure.outcome, str(failure))
        except _Broken as broken:
            return ended(Outcome.MISMATCH, str(broken), broken.forced)
        score = self.score(samples, self._baseline if stage == "search" else None)
        if score.spread > UNSTABLE_ABOVE:
            return ended(Outcome.UNSTABLE, f"spread {score.spread:.1%} is above {UNSTABLE_ABOVE:.0%}", forced)
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
            descriptor=describe(samples, _REGIME),
            samples=tuple(samples),
        )

    @staticmethod
    def score(samples: Sequence[Sample], baseline: Baseline | None) -> Score:
        """Ratios of summed median seconds. With a baseline, its references are corrected by the drift of AR."""
        candidate = median_seconds(samples, "candidate")
        own = {role: median_seconds(samples, role) for role in ("ar", "stock")}
        deviations = repeat_deviations(samples, "candidate")
        if baseline is None:
            seconds = {role: sum(own[role][prompt] for prompt in candidate) for role in own}
            for role in own:
                deviations += repeat_deviations(samples, role)
        else:
            reference = {role: baseline.seconds(role) for role in own}
            changes = {role: [own[role][p] / reference[role][p] for p in own[role]] for role in own}
            drift = median(changes["ar"] + changes["stock"])
            seconds = {role: drift * sum(reference[role][prompt] for prompt in candidate) for role in own}
            deviations += [change / drift - 1.0 for role in own for change in changes[role]]
        total = sum(candidate.values())
        timed = [s for s in samples if s.role == "candidate"]
        tokens = sum(s.tokens for s in timed if s.repeat == 0)
        return Score(
            ratio_ar=seconds["ar"] / total,
            ratio_stock=seconds["stock"] / total,
            spread=spread(deviations),
            tau=sum(s.tokens - 1 for s in timed) / max(1, sum(s.steps for s in timed)),
            tokens_per_second=tokens / total,
            ar_tokens_per_second=tokens / seconds["ar"],
            stock_tokens_per_second=tokens / seconds["stock"],
        )

    def _run_search(self, attempt: Attempt) -> tuple[list[Sample], Forced]:
        prompts, requests = self._search, self._requests
        requests.warm_up(attempt.genome, prompts[0])
        probes = {(attempt.number * _AR_PROBES + i) % len(prompts) for i in range(_AR_PROBES)}
        samples: list[Sample] = []
        verdicts: list[Verdict] = []
        for index, prompt in enumerate(prompts):
            if index in probes:
                samples.append(requests.reference("ar", prompt).sample)
            samples.append(self._candidate(attempt, prompt, 0, verdicts))
            if index == attempt.number % len(prompts):
                samples.append(requests.reference("stock", prompt).sample)
        if self.score(samples, self._baseline).ratio_ar >= _WORTH_REPEATING * self._best:
            samples += [self._candidate(attempt, prompt, 1, verdicts) for prompt in prompts]
        return samples, self._forced(verdicts)

    def _run_confirm(self, attempt: Attempt) -> tuple[list[Sample], Forced]:
        self._requests.warm_up(attempt.genome, self._confirm[0])
        samples: list[Sample] = []
        verdicts: list[Verdict] = []
        for repeat in range(_CONFIRM_REPEATS):
            for index, prompt in enumerate(self._confirm):
                roles = ["ar", "stock", "candidate"]
                turn = (index + repeat) % len(roles) if repeat else 0  # AR first at first: forcing needs its answer
                for role in roles[turn:] + roles[:turn]:
                    if role == "candidate":
                        samples.append(self._candidate(attempt, prompt, repeat, verdicts))
                        continue
                    timed = self._requests.reference(role, prompt, repeat)
                    samples.append(timed.sample)
                    if role == "ar":
                        self._forcing.remember(prompt, timed.answer)
        return samples, self._forced(verdicts)

    def _candidate(self, attempt: Attempt, prompt: PreparedPrompt, repeat: int, verdicts: list[Verdict]) -> Sample:
        """Times one answer and judges it at once: a mismatch ends the evaluation."""
        slow = 10.0 + 8.0 * self._baseline.seconds("ar").get(prompt.id, 30.0)
        timed = self._requests.candidate(attempt.genome, prompt, repeat, slow)
        verdicts.append(self._forcing.judge(prompt, timed.answer, self._requests.max_tokens))
        if verdicts[-1].mismatch:
            raise _Broken(self._forcing.total(verdicts))
        return timed.sample

    def _forced(self, verdicts: Sequence[Verdict]) -> Forced:
        forced = self._forcing.total(verdicts)
        if forced.first_mismatch:
            raise _Broken(forced)
        return forced
