"""Several requests at once: who is asked together, whose seconds are whose, and what is judged."""

from pathlib import Path

import pytest

from archive.base import Attempt
from autotune.baseline import measure_baseline
from autotune.bench import TimedRequests
from autotune.client import Launch, RequestFailed
from autotune.forcing import NoiseFloor, TokenForcing
from autotune.measure import MeasuringEvaluator
from autotune.prepared import PreparedPrompt, units
from autotune.sandbox.workers import PatchedWorkers
from engine.protocol import Forced, Generated, GeneratedBatch, Passes, Ready
from space.errors import InputError, WorkerError
from space.genome import Genome
from space.outcome import Outcome

PROMPTS = tuple(PreparedPrompt(id=f"p{i}", group="g", tokens=(i,)) for i in range(5))
GENOMES = {name: Genome.of({"drafter": name}) for name in ("none", "ngram", "suffix")}
SECONDS = {"none": 8.0, "ngram": 4.0, "suffix": 2.0}
NO_PASSES = Passes(**dict.fromkeys(Passes.model_fields, ()))


def answer(tokens):
    steps = len(tokens) - 1
    return Generated(
        tokens=tokens,
        finish="length",
        drafted=(1,) * steps,
        accepted=(0,) * steps,
        draft_seconds=(0.1,) * steps,
        verify_seconds=(0.2,) * steps,
    )


class FakeWorker:
    """Takes as long as its drafter says for any number of requests; prompt i is answered with tokens 5."""

    def __init__(self, tokens=(5, 5, 5, 5), lost=0):
        self.tokens = tokens
        self.lost = lost
        self.asked = []

    def start(self):
        return Ready(torch="none", stop_ids=(7,))

    def generate(self, request, timeout):
        return answer(self.tokens), 1.0

    def generate_batch(self, request, timeout):
        self.asked.append([asked.prompt[0] for asked in request.requests])
        assert request.concurrency == len(request.requests)
        answers = tuple(answer(self.tokens) for _ in request.requests[self.lost :])
        return GeneratedBatch(answers=answers, passes=NO_PASSES), SECONDS[request.knobs["drafter"]]

    def force(self, request, timeout):
        margins = tuple(3.0 * (token != 5) for token in request.tokens)
        return Forced(choices=(5,) * len(request.tokens), margins=margins)


def timed_requests(stock, candidate):
    nobody = Launch(role="candidate", model=Path("nowhere"), max_context=9, threads=1)
    return TimedRequests(
        stock=stock,
        candidate=candidate,
        patched=PatchedWorkers(nobody, unsafe=False),
        ar=GENOMES["none"],
        stock_genome=GENOMES["ngram"],
        max_tokens=4,
    )


def evaluate(candidate, stage, regime=2):
    stock = FakeWorker()
    requests = timed_requests(stock, candidate)
    baseline, _ = measure_baseline(requests, units(PROMPTS, regime))
    evaluator = MeasuringEvaluator(
        requests=requests,
        forcing=TokenForcing(stock, NoiseFloor(margin=0.0, flips=0, compared=99), (7,)),
        baseline=baseline,
        search=PROMPTS,
        confirm=PROMPTS,
        regime=regime,
    )
    attempt = Attempt(number=1, run_id="r", genome=GENOMES["suffix"], parents=(), operator="t", rng_state="")
    return evaluator.evaluate(attempt, stage)


def test_units_are_full():
    assert [[p.id for p in unit] for unit in units(PROMPTS, 2)] == [["p0", "p1"], ["p2", "p3"]]
    assert [[p.id for p in unit] for unit in units(PROMPTS, 2, rest=True)][2:] == [["p4"]]
    assert [len(unit) for unit in units(PROMPTS, 1)] == [len(unit) for unit in units(PROMPTS, 1, rest=True)] == [1] * 5
    assert units((), 4) == ()
    with pytest.raises(InputError, match=r"workload.concurrency = \[6\]: there are 5 prompts.*search_per_group"):
        units(PROMPTS, 6)


@pytest.mark.parametrize("stage", ["search", "confirm"])
def test_a_regime_is_measured_with_its_requests_at_once(stage):
    candidate = FakeWorker()
    evaluation = evaluate(candidate, stage)
    assert evaluation.outcome is Outcome.OK, evaluation.reason
    assert evaluation.descriptor.regime == 2
    assert evaluation.score.ratio_ar == pytest.approx(4.0)
    assert evaluation.score.ratio_stock == pytest.approx(2.0)
    assert evaluation.score.tokens_per_second == pytest.approx(2 * 8 / (2 * 2.0))
    assert candidate.asked == [[0, 1], [2, 3]] * (2 if stage == "search" else 3)
    assert {sample.prompt_id for sample in evaluation.samples} == {"p0", "p1", "p2", "p3"}
    assert evaluation.forced.tokens == evaluation.forced.exact > 0


def test_seconds_are_shared_by_tokens():
    worker = FakeWorker()
    replies = iter([(5,) * 4, (5,) * 2, (5,) * 2])
    worker.generate_batch = lambda request, timeout: (
        GeneratedBatch(answers=tuple(answer(next(replies)) for _ in request.requests), passes=NO_PASSES),
        8.0,
    )
    found = timed_requests(FakeWorker(), worker).candidates(GENOMES["suffix"], PROMPTS[:3], 1, 9.0)
    assert [timed.sample.seconds for timed in found] == [4.0, 2.0, 2.0]
    assert [timed.sample.repeat for timed in found] == [1, 1, 1]
    assert [timed.sample.prompt_id for timed in found] == ["p0", "p1", "p2"]


def test_one_wrong_token_of_one_request_is_a_mismatch():
    evaluation = evaluate(FakeWorker(tokens=(5, 5, 6, 5)), "search")
    assert evaluation.outcome is Outcome.MISMATCH
    assert "p0, token 2: 6" in evaluation.reason


def test_a_lost_answer_is_the_candidates_failure():
    evaluation = evaluate(FakeWorker(lost=1), "search")
    assert evaluation.outcome is Outcome.RUNTIME
    assert "1 answers came back for 2 requests" in evaluation.reason


def test_a_failing_reference_is_nobodys_failure():
    stock = FakeWorker()

    def fail(request, timeout):
        raise RequestFailed(Outcome.OOM, "no memory")

    stock.generate_batch = fail
    with pytest.raises(WorkerError, match=r"the reference path failed on prompts p0, p1 \(ar\): no memory"):
        timed_requests(stock, FakeWorker()).references("ar", PROMPTS[:2])


def test_answers_in_another_order_are_a_mismatch():
    """Reordered requests: each answer is right, for somebody else's prompt."""

    class Ordered(FakeWorker):
        def generate_batch(self, request, timeout):
            answers = [answer((5 + asked.prompt[0],) * 4) for asked in request.requests]
            return GeneratedBatch(answers=tuple(self.order(answers)), passes=NO_PASSES), 2.0

        def force(self, request, timeout):
            right = 5 + request.prompt[0]
            margins = tuple(3.0 * (token != right) for token in request.tokens)
            return Forced(choices=(right,) * len(request.tokens), margins=margins)

    stock = Ordered()
    stock.order = list
    forcing = TokenForcing(stock, NoiseFloor(margin=0.0, flips=0, compared=99), ())
    for order, passes in ((list, True), (reversed, False)):
        candidate = Ordered()
        candidate.order = order
        found = timed_requests(stock, candidate).candidates(GENOMES["suffix"], PROMPTS[:2], 0, 9.0)
        verdicts = [forcing.judge(prompt, timed.answer, 4) for prompt, timed in zip(PROMPTS, found, strict=False)]
        assert (forcing.total(verdicts).first_mismatch is None) == passes
