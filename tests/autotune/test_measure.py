"""The evaluator with fake requests: score arithmetic, early endings, and who is timed twice."""

import pytest

from archive.base import Attempt, Sample
from autotune.baseline import Baseline, measure_baseline
from autotune.bench import Timed
from autotune.client import RequestFailed, RequestRefused
from autotune.forcing import NoiseFloor, TokenForcing
from autotune.measure import MeasuringEvaluator
from autotune.prepared import PreparedPrompt, units
from engine.protocol import Forced, Generated
from space.errors import WorkerError
from space.genome import Genome
from space.outcome import Outcome

PROMPTS = tuple(PreparedPrompt(id=f"p{i}", group="g", tokens=(i,)) for i in range(5))
FRESH = tuple(PreparedPrompt(id=f"f{i}", group="g", tokens=(i,)) for i in range(2))
RIGHT, WRONG = (5, 5, 5, 5), (5, 6, 5, 5)


def sample(role: str, prompt: str, seconds: float, repeat: int = 0, tokens: int = 4, steps: int = 3) -> Sample:
    return Sample(
        prompt_id=prompt,
        role=role,
        repeat=repeat,
        tokens=tokens,
        seconds=seconds,
        steps=steps,
        drafted=2,
        accepted=1,
        draft_seconds=0.0,
        verify_seconds=seconds,
    )


BASELINE = Baseline(samples=tuple(sample(role, p.id, s) for role, s in (("ar", 2.0), ("stock", 1.0)) for p in PROMPTS))


class FakeRequests:
    """Answers with scripted seconds; `broken` maps a prompt to tokens or to an error."""

    max_tokens = 4

    def __init__(self, seconds=1.0, broken=None, slow=1.0):
        self.seconds = seconds
        self.broken = broken or {}
        self.slow = slow
        self.asked = []
        self.patience = {}

    def sandbox(self, genome):
        return "none"

    def release(self):
        self.released = True

    def warm_up(self, genome, prompt, timeout):
        self.asked.append(("warm-up", prompt.id, 0))

    def warm_up_reference(self, prompt):
        self.asked.append(("warm-up reference", prompt.id, 0))

    def reference(self, role, prompt, repeat=0):
        slow = self.slow.pop(0) if isinstance(self.slow, list) else self.slow
        seconds = {"ar": 2.0, "stock": 1.0}[role] * slow
        return self._timed(role, prompt, repeat, seconds, RIGHT)

    def candidate(self, genome, prompt, repeat, timeout):
        self.patience[prompt.id] = timeout
        found = self.broken.get((prompt.id, repeat), RIGHT)
        if isinstance(found, Exception):
            self.asked.append(("candidate", prompt.id, repeat))
            raise found
        seconds = self.seconds(prompt, repeat) if callable(self.seconds) else self.seconds
        slow = 1.0 if isinstance(self.slow, list) else self.slow
        return self._timed("candidate", prompt, repeat, seconds * slow, found)

    def references(self, role, unit, repeat=0):
        return [self.reference(role, prompt, repeat) for prompt in unit]

    def candidates(self, genome, unit, repeat, timeout):
        return [self.candidate(genome, prompt, repeat, timeout) for prompt in unit]

    def _timed(self, role, prompt, repeat, seconds, tokens):
        self.asked.append((role, prompt.id, repeat))
        answer = Generated(
            tokens=tokens, finish="length", drafted=(1,), accepted=(1,), draft_seconds=(0.0,), verify_seconds=(0.0,)
        )
        return Timed(sample=sample(role, prompt.id, seconds, repeat, len(tokens)), answer=answer)


class FakeStock:
    def force(self, request, timeout):
        return Forced(choices=(5,) * len(request.tokens), margins=tuple(3.0 * (t != 5) for t in request.tokens))


def evaluate(requests, stage="search", number=1, best_ratio=0.0):
    evaluator = MeasuringEvaluator(
        requests=requests,
        forcing=TokenForcing(FakeStock(), NoiseFloor(margin=0.0, flips=0, compared=99), ()),
        baseline=BASELINE,
        search=PROMPTS,
        confirm=FRESH,
        best_ratio=best_ratio,
        clock=iter(range(100)).__next__,
    )
    attempt = Attempt(
        number=number, run_id="r", genome=Genome.of({"drafter": "none"}), parents=(), operator="t", rng_state=""
    )
    return evaluator.evaluate(attempt, stage)


def test_the_score_of_a_confirmation_is_the_ratio_of_summed_medians():
    samples = [sample("ar", p, s, r) for r in (0, 1) for p, s in (("a", 4.0), ("b", 2.0))]
    samples += [sample("stock", p, s, r) for r in (0, 1) for p, s in (("a", 2.0), ("b", 2.5))]
    samples += [sample("candidate", "a", 1.0), sample("candidate", "a", 1.2, 1)]
    samples += [sample("candidate", "b", 0.5), sample("candidate", "b", 0.3, 1)]
    score = MeasuringEvaluator.score(samples, None)
    assert score.ratio_ar == pytest.approx(6.0 / 1.5)
    assert score.ratio_stock == pytest.approx(4.5 / 1.5)
    assert score.tokens_per_second == pytest.approx(8 / 1.5)
    assert score.ar_tokens_per_second == pytest.approx(8 / 6.0)
    assert score.stock_tokens_per_second == pytest.approx(8 / 4.5)
    assert score.tau == pytest.approx(1.0), "three tokens in three steps; the prefill gives the first one"
    # The candidate's repeats lie 1/11, 1/11, 1/4 and 1/4 from their prompt's median; AR and stock do not vary.
    assert score.spread == pytest.approx(1.4826 * (1 / 11 + 1 / 4) / 2)


def test_the_drift_of_the_machine_is_taken_out():
    """The machine is half as fast as at the start; AR and stock show it, so the ratios do not change."""
    quick = [sample("candidate", p.id, 0.5) for p in PROMPTS] + [sample("ar", "p0", 2.0), sample("stock", "p1", 1.0)]
    slowed = [sample("candidate", p.id, 1.0) for p in PROMPTS] + [sample("ar", "p0", 4.0), sample("stock", "p1", 2.0)]
    before, after = (MeasuringEvaluator.score(samples, BASELINE) for samples in (quick, slowed))
    assert before.ratio_ar == after.ratio_ar == pytest.approx(4.0)
    assert before.ratio_stock == after.ratio_stock == pytest.approx(2.0)
    assert after.tokens_per_second == pytest.approx(before.tokens_per_second / 2)
    assert before.spread == after.spread == 0.0


def test_probes_that_disagree_are_spread():
    samples = [sample("candidate", p.id, 0.5) for p in PROMPTS]
    samples += [sample("ar", "p0", 2.0), sample("ar", "p1", 2.2), sample("stock", "p1", 0.8)]
    # Changes 1, 1.1 and 0.8; drift 1; deviations 0, 0.1 and 0.2; their median times 1.4826.
    assert MeasuringEvaluator.score(samples, BASELINE).spread == pytest.approx(0.14826)


def test_a_good_search_evaluation():
    evaluation = evaluate(FakeRequests(slow=1.2))
    assert (evaluation.outcome, evaluation.reason) == (Outcome.OK, "")
    assert evaluation.seconds == 1
    assert evaluation.score.ratio_ar == pytest.approx(2.0)
    assert (evaluation.forced.tokens, evaluation.forced.exact) == (40, 40), "both repeats are forced"
    assert evaluation.descriptor is not None
    assert {(s.role, s.repeat) for s in evaluation.samples} == {
        ("ar", 0),
        ("stock", 0),
        ("candidate", 0),
        ("candidate", 1),
    }


def test_a_baseline_from_a_bad_moment_is_measured_anew():
    """AR and stock now take half of what the baseline says: the baseline is wrong, not the candidate fast."""
    requests = FakeRequests(slow=0.5)
    evaluation = evaluate(requests)
    assert evaluation.score.ratio_ar == pytest.approx(2.0)
    assert len([1 for role, _, _ in requests.asked if role == "ar"]) == 2 + len(PROMPTS)


def test_a_machine_that_changes_within_an_evaluation_makes_it_unstable():
    """Three probes at half speed, then a new baseline at full speed."""
    evaluation = evaluate(FakeRequests(slow=[2.0] * 3 + [1.0] * 2 * len(PROMPTS)))
    assert (evaluation.outcome, evaluation.score) == (Outcome.UNSTABLE, None)
    assert evaluation.reason == "the machine changed its speed during this evaluation"


def test_an_unsteady_baseline_is_repeated_at_most_twice():
    wild = [1.0, 1.0, 9.0, 1.0, 3.0, 1.0, 5.0, 1.0, 7.0, 1.0]
    steady = FakeRequests(slow=wild + [1.0] * 2 * len(PROMPTS))
    baseline, answers = measure_baseline(steady, units(PROMPTS, 1))
    assert baseline.unsteadiness() == 0.0
    assert len(answers) == len(PROMPTS)
    never, _ = measure_baseline(FakeRequests(slow=wild * 3), units(PROMPTS, 1))
    assert never.unsteadiness() > 0.1


def test_the_probes_rotate_over_the_prompts():
    seen = set()
    for number in range(1, 6):
        requests = FakeRequests()
        evaluate(requests, number=number)
        probed = [p for role, p, _ in requests.asked if role == "ar"]
        assert len(probed) == 2
        seen |= set(probed)
        assert len([1 for role, _, _ in requests.asked if role == "stock"]) == 1
    assert seen == {p.id for p in PROMPTS}


@pytest.mark.parametrize(("best", "repeats"), [(0.0, 2), (2.0, 2), (2.2, 2), (2.3, 1), (9.0, 1)])
def test_only_candidates_near_the_best_are_timed_twice(best, repeats):
    evaluation = evaluate(FakeRequests(), best_ratio=best)
    assert evaluation.outcome is Outcome.OK
    assert len([s for s in evaluation.samples if s.role == "candidate"]) == repeats * len(PROMPTS)


def test_a_mismatch_ends_at_once():
    requests = FakeRequests(broken={("p1", 0): WRONG})
    evaluation = evaluate(requests)
    assert evaluation.outcome is Outcome.MISMATCH
    assert evaluation.reason == "prompt p1, token 1: 6 lies 3.000 logits below stock's 5"
    assert evaluation.forced.first_mismatch == evaluation.reason
    assert (evaluation.forced.tokens, evaluation.forced.exact) == (8, 7)
    assert evaluation.samples == ()
    assert [p for role, p, _ in requests.asked if role == "candidate"] == ["p0", "p1"]


def test_a_mismatch_that_shows_only_when_repeated_counts():
    assert evaluate(FakeRequests(broken={("p4", 1): WRONG})).outcome is Outcome.MISMATCH


@pytest.mark.parametrize("outcome", [Outcome.RUNTIME, Outcome.OOM, Outcome.TIMEOUT])
def test_a_candidate_that_fails_gets_its_outcome(outcome):
    evaluation = evaluate(FakeRequests(broken={("p2", 0): RequestFailed(outcome, "what happened")}))
    assert (evaluation.outcome, evaluation.reason) == (outcome, "what happened")
    assert evaluation.score is None
    assert evaluation.seconds == 1


DIED = {("p2", 0): RequestFailed(Outcome.TIMEOUT, "it hung")}


def test_after_an_abnormal_end_the_references_are_looked_at_again():
    requests = FakeRequests(broken=DIED)
    assert evaluate(requests).outcome is Outcome.TIMEOUT
    assert requests.released
    assert requests.asked[-4:] == [("ar", "p2", 0), ("candidate", "p2", 0), ("ar", "p0", 0), ("stock", "p0", 0)]
    requests = FakeRequests(broken={("p2", 0): RequestRefused(Outcome.RUNTIME, "no such knob")})
    evaluate(requests)
    assert requests.asked[-1][:2] != ("stock", "p0"), "a refused request leaves nothing to look at"


def test_references_that_changed_their_speed_are_measured_anew():
    requests = FakeRequests(broken=DIED)
    requests.slow = [1.0, 1.0, 1.0, 2.0, 2.0, *[2.0] * 100]
    assert evaluate(requests).outcome is Outcome.TIMEOUT
    assert requests.asked.count(("warm-up reference", "p0", 0)) == 1


def test_references_that_changed_their_tokens_end_the_run():
    class Damaged(FakeRequests):
        def reference(self, role, prompt, repeat=0):
            tokens = WRONG if ("candidate", "p2", 0) in self.asked else RIGHT
            return self._timed(role, prompt, repeat, {"ar": 2.0, "stock": 1.0}[role], tokens)

    with pytest.raises(WorkerError, match="after a candidate that ended abnormally, ar gives other tokens: prompt p0"):
        evaluate(Damaged(broken=DIED))


def test_a_noisy_candidate_is_unstable_and_has_no_score():
    evaluation = evaluate(FakeRequests(seconds=lambda prompt, repeat: 1.0 + repeat))
    assert evaluation.outcome is Outcome.UNSTABLE
    assert evaluation.reason.startswith("spread ")
    assert evaluation.reason.endswith("is above 10%")
    assert evaluation.score is None
    assert evaluation.forced.exact == 40


def test_patience_follows_what_ar_took():
    requests = FakeRequests()
    evaluate(requests)
    assert requests.patience["p0"] == 26.0
    evaluate(requests, stage="confirm")
    assert requests.patience["f0"] == 250.0


def test_the_confirmation_times_all_three_on_every_fresh_prompt_thrice():
    requests = FakeRequests()
    evaluation = evaluate(requests, stage="confirm")
    assert evaluation.outcome is Outcome.OK
    assert sorted(requests.asked[1:]) == sorted(
        (role, p.id, r) for role in ("ar", "stock", "candidate") for p in FRESH for r in (0, 1, 2)
    )
    first = [role for role, p, r in requests.asked[1:] if r == 0 and p == "f0"]
    second = [role for role, p, r in requests.asked[1:] if r == 1 and p == "f0"]
    assert first == ["ar", "stock", "candidate"]
    assert second != first, "the turn changes, so nobody is always first"
    assert evaluation.forced.tokens == 24
