"""Token forcing with a fake stock: which tokens pass, which are near-ties, and how an answer must end."""

import math
from fractions import Fraction

import pytest

from autotune.client import RequestFailed, RequestRefused
from autotune.forcing import NoiseFloor, TokenForcing, binomial_tail, measure_noise, too_many_near_ties
from autotune.prepared import PreparedPrompt
from engine.protocol import Forced, Generated, Noise
from space.errors import WorkerError
from space.outcome import Outcome

PROMPT = PreparedPrompt(id="p", group="g", tokens=(1, 2))
STOP = 9
SILENT = NoiseFloor(margin=0.0, flips=0, compared=1000)
NOISY = NoiseFloor(margin=0.25, flips=9, compared=998)


def answer(*tokens: int, finish: str = "length") -> Generated:
    return Generated(
        tokens=tokens, finish=finish, drafted=(0,), accepted=(0,), draft_seconds=(0.0,), verify_seconds=(0.0,)
    )


class FakeStock:
    """Always chooses token 5; what it is given lies so far below that."""

    def __init__(self, margins=None, error=None):
        self.margins = margins or {}
        self.error = error
        self.forced = 0

    def force(self, request, timeout):
        self.forced += 1
        if self.error:
            raise self.error
        margins = tuple(0.0 if token == 5 else self.margins.get(token, 3.0) for token in request.tokens)
        return Forced(choices=(5,) * len(request.tokens), margins=margins)


def judge(given: Generated, noise=SILENT, max_tokens=4, **stock):
    forcing = TokenForcing(FakeStock(**stock), noise, (STOP,))
    return forcing.judge(PROMPT, given, max_tokens), forcing


@pytest.mark.parametrize("trials", [1, 4, 9])
@pytest.mark.parametrize("rate", [Fraction(1, 1000), Fraction(1, 7), Fraction(2, 3)])
def test_binomial_tail_against_exact_enumeration(trials, rate):
    for successes in range(trials + 1):
        exact = sum(math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(successes, trials + 1))
        assert binomial_tail(successes, trials, float(rate)) == pytest.approx(float(exact), abs=1e-12)


def test_near_ties_may_be_as_frequent_as_those_of_stock():
    assert not too_many_near_ties(0, 100, SILENT)
    assert NOISY.flip_rate == pytest.approx(0.01)
    assert not too_many_near_ties(3, 100, NOISY)
    assert too_many_near_ties(8, 100, NOISY)
    assert too_many_near_ties(3, 100, SILENT), "stock that never flips allows hardly any"


def test_what_stock_chooses_is_exact():
    verdict, forcing = judge(answer(5, 5, 5, 5))
    assert (verdict.tokens, verdict.exact, verdict.near_ties, verdict.mismatch) == (4, 4, 0, None)
    assert forcing.total([verdict]).first_mismatch is None


def test_a_token_within_the_noise_is_a_near_tie():
    verdict, _ = judge(answer(5, 6, 5, 7), NOISY, margins={6: 0.25, 7: 0.1})
    assert (verdict.exact, verdict.near_ties, verdict.mismatch) == (2, 2, None)


def test_a_token_beyond_the_noise_is_a_mismatch_and_the_first_one_is_named():
    verdict, forcing = judge(answer(5, 6, 7, 6), NOISY, margins={6: 0.26, 7: 0.1})
    assert (verdict.exact, verdict.near_ties) == (1, 1)
    assert verdict.mismatch == "prompt p, token 1: 6 lies 0.260 logits below stock's 5"
    forced = forcing.total([verdict])
    assert (forced.tokens, forced.exact, forced.near_ties) == (4, 1, 1)
    assert forced.first_mismatch == verdict.mismatch


def test_without_noise_only_an_equal_logit_is_a_near_tie():
    assert judge(answer(5, 6, 5, 5), margins={6: 0.0})[0].near_ties == 1
    assert judge(answer(5, 6, 5, 5), margins={6: 0.001})[0].mismatch


def test_not_a_number_is_a_mismatch():
    assert judge(answer(5, 6, 5, 5), NOISY, margins={6: math.nan})[0].mismatch


def test_too_many_near_ties_are_a_mismatch_of_the_whole():
    verdict, forcing = judge(answer(6, 6, 6, 6), NOISY, margins={6: 0.1})
    forced = forcing.total([verdict])
    assert verdict.mismatch is None
    assert forced.first_mismatch == (
        "4 near-ties in 4 tokens; stock shows 0.250 logits (99.9th percentile), 9 of 998 choices flip"
    )


def test_stocks_own_answer_needs_no_second_look():
    forcing = TokenForcing(stock := FakeStock(), SILENT, (STOP,))
    forcing.remember(PROMPT, answer(8, 8, 8, 8))
    assert forcing.judge(PROMPT, answer(8, 8, 8, 8), 4).exact == 4
    assert stock.forced == 0
    other = PreparedPrompt(id="q", group="g", tokens=(1,))
    assert forcing.judge(other, answer(8, 8, 8, 8), 4).mismatch, "another prompt's answer is forced"
    assert forcing.judge(PROMPT, answer(8, 8, 8, 7), 4).mismatch, "an answer that differs is forced"
    assert stock.forced == 2
    forcing.judge(PROMPT, answer(8, 8, 8, 7), 4)
    assert stock.forced == 2, "the same answer is forced once"


def test_an_answer_that_ends_elsewhere_is_no_reference():
    forcing = TokenForcing(FakeStock(), SILENT, (STOP,))
    forcing.remember(PROMPT, answer(5, STOP, finish="stop"))
    assert forcing.judge(PROMPT, answer(5, STOP), 4).mismatch == "prompt p: it says length, but has 2 tokens of 4"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (answer(), "no token came back"),
        (answer(5, -1, 5, 5), "-1 is no token"),
        (answer(5, STOP, 5, 5), "tokens follow a stop token"),
        (answer(5, 5, finish="stop"), "it says stop, but the last token is none"),
        (answer(5, 5, 5), "it says length, but has 3 tokens of 4"),
        (answer(5, 5, 5, 5, 5), "it says length, but has 5 tokens of 4"),
        (answer(5, 5, 5, STOP), "it says length, but has 4 tokens of 4"),
        (answer(5, 5, 5, 5, STOP, finish="stop"), "5 tokens, allowed are 4"),
    ],
)
def test_how_an_answer_must_end(given, complaint):
    verdict, _ = judge(given)
    assert verdict.mismatch == f"prompt p: {complaint}"
    assert (verdict.exact, verdict.near_ties) == (0, 0)


def test_both_proper_endings_pass():
    assert judge(answer(5, 5, 5, 5))[0].mismatch is None
    verdict, _ = judge(answer(5, 5, STOP, finish="stop"), margins={STOP: 0.0})
    assert verdict.mismatch is None


def test_tokens_that_stock_refuses_are_a_mismatch():
    verdict, _ = judge(answer(5, 5, 5, 10**6), error=RequestRefused(Outcome.RUNTIME, "no such token"))
    assert verdict.mismatch == "prompt p: stock cannot judge these tokens: no such token"


@pytest.mark.parametrize(
    "error",
    [
        RequestRefused(Outcome.OOM, "out of memory"),
        RequestFailed(Outcome.TIMEOUT, "no answer"),
        RequestFailed(Outcome.RUNTIME, "the worker ended"),
    ],
)
def test_a_failure_of_stock_is_nobodys_fault(error):
    with pytest.raises(WorkerError, match="reference path failed to force prompt p") as caught:
        judge(answer(5, 5, 5, 6), error=error)
    assert not isinstance(caught.value, RequestFailed), "it must not become the candidate's outcome"


class NoisyStock:
    def __init__(self, *replies):
        self._replies = iter(replies)

    def noise(self, request, timeout):
        return next(self._replies)


def test_the_noise_floor_is_a_high_percentile_of_what_was_measured():
    calm = Noise(shifts=(0.0,) * 999, flips=0, compared=999)
    rare = Noise(shifts=(0.5, 0.25), flips=1, compared=2)
    floor = measure_noise(NoisyStock(calm, rare), [(PROMPT, answer(5))] * 2)
    assert (floor.margin, floor.flips, floor.compared) == (0.25, 1, 1001)
    assert "1 of 1001 choices flip" in floor.describe()
    assert measure_noise(NoisyStock(calm), [(PROMPT, answer(5))]).describe() == (
        "none: stock is bit-equal to itself at 1, 2, 8, 16, 32 rows (999 compared)"
    )
