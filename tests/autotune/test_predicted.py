"""Predicted evaluations: the tokens are the stand-in's, the seconds the cost model's, failures are outcomes."""

import pytest
from planned_fakes import PROMPTS, TOKENS, FakeStandIn, answer

from archive.base import Attempt
from autotune.costmodel import CostModel
from autotune.gaps import PACKED_BYTES
from autotune.mechanisms import in_words, options_with_effect, planned_system
from autotune.overheads import STOCK_VLLM
from autotune.predicted import PredictedEvaluator, Predictor
from space.genome import Genome
from space.hardware import find_profile
from space.outcome import Outcome
from space.planned import MECHANISM_NAMES, MECHANISMS, planned_ar, planned_space, planned_stock
from space.shapes import find_drafter, find_model

SPACE = planned_space()
STOCK, AR = planned_stock(SPACE), planned_ar(SPACE)


def predictor(regime=1, hardware="h200"):
    model = CostModel(
        hardware=find_profile(hardware),
        target=find_model("llama-3.1-8b"),
        drafter=find_drafter("dflash-llama-3.1-8b"),
        system=STOCK_VLLM,
    )
    return Predictor(model=model, regime=regime, stand_in_vocabulary=49152)


def genome(**knobs):
    return Genome.complete(SPACE, knobs)


def evaluate(chosen, *, regime=1, broken=None, stage="search"):
    evaluator = PredictedEvaluator(
        predictor=predictor(regime), stand_in=FakeStandIn(broken), space=SPACE, headroom=1.5, clock=lambda: 0.0
    )
    attempt = Attempt(number=4, run_id="r", genome=chosen, parents=(), operator="o", rng_state="")
    return evaluator.evaluate(attempt, stage)


def test_the_defaults_of_the_space_are_stock_and_stock_is_vllm():
    assert genome() == STOCK
    assert planned_system(STOCK.knobs, find_profile("h200")) is STOCK_VLLM
    assert planned_system(AR.knobs, find_profile("h200")) is STOCK_VLLM
    assert STOCK.knobs["draft_length"] == 7


def test_every_mechanism_has_a_declared_effect_and_nothing_else_has():
    options = {(knob.name, option) for knob in MECHANISMS for option in knob.domain.options[1:]}
    assert options_with_effect() == options
    assert set(MECHANISM_NAMES) <= {knob.name for knob in SPACE.knobs}
    assert "threads" not in {knob.name for knob in SPACE.knobs}


@pytest.mark.parametrize("option", sorted(options_with_effect()))
def test_every_mechanism_changes_the_prediction_and_is_told_in_words(option):
    chosen = genome(**dict([option]), draft_length=12, drafter="suffix")  # text drafts vary: rows can be packed
    plain = genome(draft_length=12, drafter="suffix")
    reply = answer(plain.knobs).model_copy(update={"drafted": (2,) * 12})
    here = predictor(8)
    before, after = (here.predict(g, 50, reply).seconds for g in (plain, chosen))
    assert after != before
    [(words, ground)] = in_words(chosen)
    assert words
    assert ground


def test_stock_is_its_own_measure():
    score = evaluate(STOCK).score
    assert score.ratio_stock == 1.0
    assert (score.tau, score.spread) == (3.0, 0.0)
    assert 1.5 < score.ratio_ar < 3.0, "three tokens a step, less what drafting and rows cost"
    assert evaluate(AR).score.ratio_ar == 1.0


def test_seconds_are_prefill_and_steps_of_the_named_device():
    here = predictor(8)
    found = here.predict(AR, 50, answer(AR.knobs))
    loads = [here.load(AR, drafted=0, context=51.0 + i, committed=1.0) for i in range(TOKENS - 1)]
    expected = here.model.prefill(8, 50) + sum(here.model.step(load).total for load in loads)
    assert found.seconds == pytest.approx(expected)
    assert found.draft_seconds == 0 < found.verify_seconds < found.seconds


def test_a_slower_device_and_a_larger_batch():
    alone, many = (evaluate(STOCK, regime=regime).score for regime in (1, 32))
    assert many.tokens_per_second > 5 * alone.tokens_per_second
    assert many.ratio_ar < alone.ratio_ar, "speculation pays less under load"
    card, chip = (
        predictor(hardware=name).predict(STOCK, 50, answer(STOCK.knobs)).seconds for name in ("rtx4090", "h200")
    )
    assert 3 < card / chip < 5


def test_the_evaluation_holds_what_was_decoded():
    found = evaluate(genome(weight_path="w12-skinny"), regime=8)
    assert found.outcome is Outcome.OK
    assert found.forced.tokens == TOKENS * len(PROMPTS["search"])
    assert {sample.role for sample in found.samples} == {"ar", "stock", "candidate"}
    assert {sample.prompt_id for sample in found.samples} == {prompt.id for prompt in PROMPTS["search"]}
    assert found.descriptor.regime == 8
    assert found.descriptor.width == pytest.approx(8 * 7 / TOKENS)
    assert {s.prompt_id for s in evaluate(STOCK, stage="confirm").samples} == {p.id for p in PROMPTS["confirm"]}


def test_twelve_bits_pay_at_one_request_and_not_at_many():
    packed = genome(weight_path="w12-skinny")
    assert planned_system(packed.knobs, find_profile("h200")).weight_bytes == PACKED_BYTES
    assert evaluate(packed).score.ratio_stock > 1.1
    assert evaluate(packed, regime=32).score.ratio_stock < 1.0


@pytest.mark.parametrize(
    ("broken", "outcome", "reason"),
    [("oom", Outcome.OOM, "too big"), ("token 3 is wrong", Outcome.MISMATCH, "token 3 is wrong")],
)
def test_what_the_stand_in_cannot_do_is_an_outcome(broken, outcome, reason):
    found = evaluate(genome(drafter="ngram"), broken={"ngram": broken})
    assert (found.outcome, found.reason, found.score) == (outcome, reason, None)


def test_filled_rows_cost_what_packed_rows_do_not():
    filled, packed = (genome(drafter="suffix", draft_length=14, verify_rows=rows) for rows in ("filled", "packed"))
    loads = [predictor(8).load(g, drafted=2, context=9.0, committed=1.0) for g in (filled, packed)]
    assert [load.nodes for load in loads] == [14, 2]
    assert predictor().load(AR, drafted=0, context=9.0, committed=1.0).nodes == 0
    long = genome(draft_length=14)
    assert predictor().load(long, drafted=7, context=9.0, committed=1.0).nodes == 9, "the named drafter's own longest"


def test_a_pruned_vocabulary_makes_drafting_cheaper():
    few, everything = genome(draft_vocabulary=8192), genome()
    assert predictor().load(few, drafted=7, context=9.0, committed=1.0).draft_head == pytest.approx(1 / 6)
    assert evaluate(few).score.ratio_stock > evaluate(everything).score.ratio_stock


def test_gaps_of_a_text_drafter_leave_acceptance_out():
    here = predictor()
    suffix = genome(drafter="suffix")
    for chosen, known in ((STOCK, True), (suffix, False)):
        samples = [s for s in evaluate(chosen).samples if s.role == "candidate"]
        report = here.gaps(chosen, samples, 1.5)
        assert ("acceptance" in {gap.kind.name for gap in report.gaps}) is known
