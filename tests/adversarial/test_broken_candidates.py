"""Every cheat must end as a mismatch; no honest candidate may."""

import pytest
from court import SPACE, attempt

from autotune.environment import packs_weights
from autotune.session import Session, deployment_prompts
from space.genome import Genome
from space.outcome import Outcome

CHEATS = {
    "cheat_careless_verifier": "logits below stock's",
    "cheat_repeats_last_token": "logits below stock's",
    "cheat_accepts_first_draft": "logits below stock's",
    "cheat_drops_last_token": "it says length, but has",
    "cheat_ignores_stop": "tokens follow a stop token",
    "cheat_stops_early": "it says stop, but the last token is none",
    "cheat_answers_from_memory": "logits below stock's",
    "cheat_halves_the_prompt": "logits below stock's",
    "cheat_quantised_target": "logits below stock's",
    "cheat_invents_tokens": "stock cannot judge these tokens",
}
HONEST = (
    {"drafter": "none"},
    {"draft_length": 6, "ngram_max": 5, "ngram_min": 5},
    {"draft_length": 32, "ngram_max": 2, "ngram_min": 1},
    {"drafter": "suffix", "draft_length": 16, "min_probability": 0.0, "suffix_factor": 8.0},
    {"drafter": "suffix", "linear_path": "packed", "prefill_chunk": 64},
    {"ngram_max": 3, "ngram_min": 1, "linear_path": "packed", "prefill_chunk": 512},
)
HONEST_HERE = [knobs for knobs in HONEST if packs_weights() or knobs.get("linear_path") != "packed"]


@pytest.mark.parametrize(("module", "reason"), CHEATS.items(), ids=CHEATS)
def test_a_cheat_is_a_mismatch(court, module, reason):
    evaluation = court.judge(module)
    assert evaluation.outcome is Outcome.MISMATCH, evaluation.reason
    assert reason in evaluation.reason
    assert evaluation.forced.first_mismatch == evaluation.reason
    assert evaluation.forced.exact + evaluation.forced.near_ties < evaluation.forced.tokens
    assert evaluation.score is None
    assert evaluation.samples == ()


def test_a_cheat_is_a_mismatch_in_the_confirmation_too(court):
    assert court.judge("cheat_accepts_first_draft", stage="confirm").outcome is Outcome.MISMATCH


def test_a_cheat_that_never_drafts_has_nothing_to_cheat_with(court):
    evaluation = court.judge("cheat_accepts_first_draft", Genome.complete(SPACE, {"drafter": "none"}))
    assert evaluation.outcome is Outcome.OK


def test_honest_candidates_are_ok(court):
    with court.evaluator("engine.worker") as evaluator:
        found = [
            evaluator.evaluate(attempt(Genome.complete(SPACE, knobs), number), stage)
            for number, knobs in enumerate(HONEST_HERE, 1)
            for stage in ("search", "confirm")
        ]
    assert [(e.outcome, e.reason) for e in found] == [(Outcome.OK, "")] * len(found)
    assert all(e.forced.exact == e.forced.tokens > 0 for e in found)
    taus = [e.score.tau for e in found if e.stage == "search"]
    assert taus[0] == 1.0
    assert max(taus) > 1.2, "nothing was accepted, so nothing was tested"


def test_on_the_shipped_model(real_court):
    for module in ("cheat_careless_verifier", "cheat_repeats_last_token"):
        evaluation = real_court.judge(module)
        assert evaluation.outcome is Outcome.MISMATCH, (module, evaluation.reason)
        assert "logits below stock's" in evaluation.reason


def test_a_session_can_be_given_a_cheat(calm, deployment, tmp_path):
    with Session(deployment, tmp_path, lambda text: None, worker_module="cheat_repeats_last_token") as session:
        evaluator = session.evaluator(deployment_prompts(deployment)[1])
        assert evaluator.evaluate(attempt(), "search").outcome is Outcome.MISMATCH
