import pytest
from search_fakes import SPACE, Landscape, MemoryStore, search, trial

from autotune.ablation import ABLATE_OPERATOR, ablations, worths
from space.genome import Genome

CHOSEN = {"drafter": "suffix", "draft_length": 9, "suffix_depth": 40}


def changed(knobs):
    return {name for name, value in knobs.items() if value != SPACE.knob(name).default}


def test_each_choice_goes_back_alone_and_takes_what_hangs_on_it_along():
    winner = Genome.complete(SPACE, CHOSEN)
    found = dict(ablations(winner, SPACE))
    assert set(found) == changed(winner.knobs) == set(CHOSEN)
    assert changed(found["draft_length"].knobs) == {"drafter", "suffix_depth"}
    assert changed(found["drafter"].knobs) == {"draft_length"}
    assert not list(ablations(Genome.complete(SPACE, {}), SPACE))


def test_worth_is_the_speed_lost_without_the_choice():
    winner = Genome.complete(SPACE, CHOSEN)
    trials = [
        trial(1, 2.0, knobs=CHOSEN, spread=0.01),
        trial(2, 1.6, knobs={**CHOSEN, "draft_length": SPACE.knob("draft_length").default}, spread=0.01),
        trial(3, 1.9, knobs={"draft_length": 9}, spread=0.01),
        trial(4, 0.5, knobs={**CHOSEN, "suffix_depth": SPACE.knob("suffix_depth").default}, stage="confirm"),
    ]
    first, second = worths(winner, trials, SPACE)
    assert (first.name, first.value, first.default) == ("draft_length", 9, SPACE.knob("draft_length").default)
    assert first.gain == pytest.approx(0.25)
    assert first.noise == pytest.approx((0.02**2 + 0.016**2) ** 0.5 / 1.6)
    assert (second.name, second.gain) == ("drafter", pytest.approx(2.0 / 1.9 - 1))
    assert worths(winner, trials[1:], SPACE) == ()


def test_a_run_with_time_ends_with_them_and_does_not_repeat_them():
    store = MemoryStore()
    result = search(store, Landscape(), evals=10_000, seconds=60.0)
    ablated = [t for t in result.trials if t.attempt.operator == ABLATE_OPERATOR]
    assert result.winner is not None
    assert worths(result.winner.attempt.genome, result.trials, SPACE)
    assert all(t.evaluation.stage == "search" for t in ablated)
    genomes = [t.attempt.genome.id for t in result.trials if t.evaluation.stage == "search"]
    assert len(genomes) == len(set(genomes))
    last = [t.evaluation.stage for t in result.trials].index("confirm")
    assert ablated, "the reserve is there for them"
    assert all(t.attempt.number > result.trials[last].attempt.number for t in ablated)


def test_none_beyond_the_evaluations_allowed():
    result = search(evals=12, seconds=1e6)
    assert sum(t.evaluation.stage == "search" for t in result.trials) == 12
