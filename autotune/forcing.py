"""Token forcing: every emitted token is judged by stock, in stock's own process.

A token passes when it is stock's choice after the same prefix, or when it lies below that choice by no more than the
noise that stock shows against itself on this machine. Such near-ties may not be more frequent than stock's own.

Sampled tokens pass in the same way: stock draws with the same random numbers, which belong to seed and position. That
judges every token, where a chi-square test of distributions would need thousands of answers to see a small bias.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from archive.base import Forced
from autotune.client import RequestFailed, RequestRefused, WorkerClient
from autotune.prepared import PreparedPrompt
from engine.protocol import Force, Generated, MeasureNoise
from space.errors import WorkerError
from space.outcome import Outcome

ROW_COUNTS = (2, 8, 16, 32)
_PERCENTILE = 0.999
_NOISE_TOKENS = 32
"""Tokens of each answer on which stock is compared with itself."""
_SIGNIFICANCE = 0.001
_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """Stock against itself: the 99.9th percentile of margin shifts in `unit`, and flipped choices out of compared."""

    margin: float
    flips: int
    compared: int
    unit: str = "logits"

    @property
    def flip_rate(self) -> float:
        """Estimated share of positions at which stock disagrees with itself (Laplace's rule: never quite zero)."""
        return (self.flips + 1) / (self.compared + 2)

    def describe(self) -> str:
        """One line for the terminal."""
        if self.margin == 0 and self.flips == 0:
            rows = ", ".join(map(str, ROW_COUNTS))
            return f"none: stock is bit-equal to itself at 1, {rows} rows ({self.compared} compared)"
        return f"{self.margin:.3f} {self.unit} (99.9th percentile), {self.flips} of {self.compared} choices flip"


def measure_noise(
    stock: WorkerClient, answers: Sequence[tuple[PreparedPrompt, Generated]], linear_path: str = "plain"
) -> NoiseFloor:
    """Measures stock against itself on AR answers of its own: one row a pass against ROW_COUNTS rows a pass.

    `linear_path` is the weight layout of AR.
    """
    shifts: list[float] = []
    flips = compared = 0
    for prompt, answer in answers:
        request = MeasureNoise(
            prompt=prompt.tokens,
            tokens=answer.tokens[:_NOISE_TOKENS],
            row_counts=ROW_COUNTS,
            linear_path=linear_path,
            sampling=prompt.sampling,
        )
        noise = stock.noise(request, _TIMEOUT)
        shifts += noise.shifts
        flips += noise.flips
        compared += noise.compared
    shifts.sort()
    margin = shifts[min(len(shifts) - 1, math.ceil(_PERCENTILE * len(shifts)) - 1)] if shifts else 0.0
    unit = "of probability" if any(prompt.sampling for prompt, _ in answers) else "logits"
    return NoiseFloor(margin=margin, flips=flips, compared=compared, unit=unit)


def binomial_tail(successes: int, trials: int, rate: float) -> float:
    """P(X >= successes) for X ~ Binomial(trials, rate), 0 < rate < 1; exact, summed from below in log space."""
    below = 0.0
    for k in range(successes):
        log_term = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        below += math.exp(log_term + k * math.log(rate) + (trials - k) * math.log1p(-rate))
    return max(0.0, 1.0 - below)


def too_many_near_ties(near_ties: int, tokens: int, noise: NoiseFloor) -> bool:
    """True when stock would hardly ever (probability under 0.001) disagree with itself this often."""
    return near_ties > 0 and binomial_tail(near_ties, tokens, noise.flip_rate) < _SIGNIFICANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one answer. `mismatch` says which token failed first and why, or is None."""

    tokens: int
    exact: int
    near_ties: int = 0
    mismatch: str | None = None


class TokenForcing:
    """Judges answers. Stock's own AR answers are kept: where an answer equals them, every token is stock's choice."""

    def __init__(self, stock: WorkerClient, noise: NoiseFloor, stop_ids: Sequence[int]) -> None:
        """Takes the stock worker, its measured noise, and the ids that end an answer."""
        self._stock = stock
        self._noise = noise
        self._stop_ids = frozenset(stop_ids)
        self._references: dict[str, tuple[int, ...]] = {}
        self._verdicts: dict[tuple[str, tuple[int, ...]], Verdict] = {}

    def remember(self, prompt: PreparedPrompt, answer: Generated) -> None:
        """Keeps an AR answer that the stock worker itself generated at one row a step."""
        self._references[prompt.id] = answer.tokens

    def judge(self, prompt: PreparedPrompt, answer: Generated, max_tokens: int) -> Verdict:
        """Judges one answer: its tokens, and that it ended where it should."""
        ended = self._ending(answer, max_tokens)
        if ended is not None:
            return Verdict(tokens=len(answer.tokens), exact=0, mismatch=f"prompt {prompt.id}: {ended}")
        if answer.tokens == self._references.get(prompt.id):
            return Verdict(tokens=len(answer.tokens), exact=len(answer.tokens))
        key = (prompt.id, answer.tokens)
        if key not in self._verdicts:
            self._verdicts[key] = self._force(prompt, answer)
        return self._verdicts[key]

    def total(self, verdicts: Sequence[Verdict]) -> Forced:
        """Adds verdicts up; near-ties that are too frequent for stock's noise are a mismatch of the whole."""
        tokens = sum(verdict.tokens for verdict in verdicts)
        near_ties = sum(verdict.near_ties for verdict in verdicts)
        mismatch = next((verdict.mismatch for verdict in verdicts if verdict.mismatch), None)
        if mismatch is None and too_many_near_ties(near_ties, tokens, self._noise):
            mismatch = f"{near_ties} near-ties in {tokens} tokens; stock shows {self._noise.describe()}"
        exact = sum(verdict.exact for verdict in verdicts)
        return Forced(tokens=tokens, exact=exact, near_ties=near_ties, first_mismatch=mismatch)

    def _ending(self, answer: Generated, max_tokens: int) -> str | None:
        """What is wrong with where an answer ends, or None."""
        tokens = answer.tokens
        if not tokens:
            return "no token came back"
        if min(tokens) < 0:
            return f"{min(tokens)} is no token"
        if any(token in self._stop_ids for token in tokens[:-1]):
            return "tokens follow a stop token"
        if answer.finish == "stop" and tokens[-1] not in self._stop_ids:
            return "it says stop, but the last token is none"
        if answer.finish == "length" and (len(tokens) != max_tokens or tokens[-1] in self._stop_ids):
            return f"it says length, but has {len(tokens)} tokens of {max_tokens}"
        if len(tokens) > max_tokens:
            return f"{len(tokens)} tokens, allowed are {max_tokens}"
        return None

    def _force(self, prompt: PreparedPrompt, answer: Generated) -> Verdict:
        try:
            trace = self._stock.force(
                Force(prompt=prompt.tokens, tokens=answer.tokens, sampling=prompt.sampling), _TIMEOUT
            )
        except RequestFailed as error:
            # Stock refuses what is no token of the model; any other failure is stock's own and judges nobody.
            if isinstance(error, RequestRefused) and error.outcome is Outcome.RUNTIME:
                where = f"prompt {prompt.id}: stock cannot judge these tokens: {error}"
                return Verdict(tokens=len(answer.tokens), exact=0, mismatch=where)
            raise WorkerError(f"the reference path failed to force prompt {prompt.id}: {error}") from error
        exact = near_ties = 0
        mismatch = None
        for index, (token, choice, margin) in enumerate(zip(answer.tokens, trace.choices, trace.margins, strict=True)):
            if token == choice:
                exact += 1
            elif margin <= self._noise.margin:
                near_ties += 1
            elif mismatch is None:
                far = f"{margin:.3f} {self._noise.unit}"
                mismatch = f"prompt {prompt.id}, token {index}: {token} lies {far} below stock's {choice}"
        return Verdict(tokens=len(answer.tokens), exact=exact, near_ties=near_ties, mismatch=mismatch)
