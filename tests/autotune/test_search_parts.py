import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_fakes import SPACE, Landscape, cell_of, random_history, trial

from archive.base import Sample
from autotune.budget import Budget, format_duration
from autotune.credit import FLOOR, credits, probabilities
from autotune.descriptor import describe, losses
from autotune.options import parse_duration
from autotune.randomness import dump_state, restored
from autotune.ranking import best, finalists, within_noise
from autotune.recorded import RecordingEvaluator, ReplayClock, ReplayEvaluator
from space.errors import InputError
from space.outcome import Outcome

NAMES = ["a", "b", "c"]


def test_the_bandit_shifts_to_the_operator_that_improves_and_starves_none():
    history, ratio = [trial(0, 1.0, operator="seed")], 1.0
    for n, distinct in enumerate(random_history(SPACE, 30), 1):
        ratio *= 1.03
        name = NAMES[n % 3]
        found = ratio if name == "b" else 0.9
        history.append(trial(n, found, knobs=distinct.attempt.genome.knobs, operator=name))
    chance = probabilities(credits(history, NAMES, cell_of))
    assert chance["b"] > 0.5
    assert min(chance.values()) >= FLOOR
    assert sum(chance.values()) == pytest.approx(1.0)


def test_credit_is_gain_for_cost():
    def run(seconds_of_b):
        history = [trial(0, 1.0, operator="seed"), trial(1, 1.2, operator="a", knobs={"threads": 1})]
        history.append(trial(2, 1.44, operator="b", knobs={"threads": 2}, seconds=seconds_of_b))
        return credits(history, NAMES, cell_of)

    assert run(1.0)["b"] > run(1.0)["a"] > run(1.0)["c"]
    assert run(5.0)["b"] < run(5.0)["a"]


def test_a_new_operator_starts_with_the_prior_and_old_credit_fades():
    history = [trial(0, 1.0, operator="seed"), trial(1, 1.5, operator="a", knobs={"threads": 1})]
    fresh = credits(history, NAMES, cell_of)
    later = [trial(n, 0.5, operator="c", knobs={"threads": 2}) for n in range(2, 120)]
    faded = credits(history + later, NAMES, cell_of)
    assert fresh["a"] > 10 * fresh["b"]
    assert faded["a"] < 1.5 * faded["b"]
    assert faded["c"] < faded["b"]


def test_failures_cost_without_credit():
    failed = [trial(n, outcome=Outcome.TIMEOUT, operator="a", seconds=9.0) for n in range(3)]
    found = credits(failed, NAMES, cell_of)
    assert found["a"] < found["b"]


def test_the_floor_fits_any_number_of_operators():
    many = {str(n): 1.0 if n else 1e9 for n in range(40)}
    chance = probabilities(many)
    assert sum(chance.values()) == pytest.approx(1.0)
    assert min(chance.values()) > 0


def test_ties_within_the_noise_go_to_the_simpler_genome():
    complex_ = trial(1, 1.52, knobs={"drafter": "suffix", "threads": 2, "linear_path": "packed"}, spread=0.02)
    simple = trial(2, 1.50, knobs={"threads": 2}, spread=0.02)
    slower = trial(3, 1.30, spread=0.02)
    trials = [complex_, simple, slower]
    assert best(trials, SPACE) is simple
    assert within_noise(trials, "search") == [complex_, simple]
    assert finalists(trials, SPACE, 3) == [simple, complex_]
    assert finalists(trials, SPACE, 1) == [simple]
    sharp = [
        trial(t.attempt.number, r, knobs=t.attempt.genome.knobs, spread=0.001)
        for t, r in zip(trials, (1.52, 1.5, 1.3), strict=True)
    ]
    assert best(sharp, SPACE) is sharp[0]


def test_only_ok_trials_of_the_stage_are_ranked():
    trials = [
        trial(1, 9.0, outcome=Outcome.UNSTABLE),
        trial(2, 1.2, knobs={"threads": 2}),
        trial(3, 5.0, stage="confirm"),
    ]
    assert best(trials, SPACE) is trials[1]
    assert best(trials, SPACE, "confirm") is trials[2]
    assert best([], SPACE) is None
    assert finalists([], SPACE, 3) == []


def budget(**changes):
    clock = ReplayClock()
    return clock, Budget(**{"max_evals": 10, "seconds": 100.0, "clock": clock, "started": 0.0, **changes})


def test_the_budget_counts_what_runs_next_and_the_confirmation():
    clock, limits = budget(confirm_cost=2.0)
    assert limits.affords_search([])
    trials = [trial(n, seconds=s) for n, s in enumerate((8.0, 10.0, 90.0))]  # reserve 40 -> 33, and 10
    clock.charge(46.6)
    assert limits.affords_search(trials)
    clock.charge(0.2)
    assert not limits.affords_search(trials)
    assert limits.affords_confirmation(trials)
    clock.charge(35.0)
    assert not limits.affords_confirmation(trials)


def test_the_budget_covers_all_sessions_and_counts_search_evaluations_only():
    clock, limits = budget(max_evals=2)
    earlier = [trial(1, seconds=5.0), trial(2, seconds=45.0, stage="confirm")]
    clock.charge(4.0)
    resumed = limits.resumed(earlier)
    assert resumed.seconds_left() == 46.0
    assert resumed.left(earlier) == "46s, 1 evals"
    assert resumed.affords_search(earlier)
    assert not resumed.affords_search([*earlier, trial(3, seconds=1.0)])
    clock.charge(50.0)
    assert resumed.left(earlier) == "0s, 1 evals"


def test_a_short_budget_still_searches_more_than_the_first_seed():
    clock, limits = budget(seconds=20.0, confirm_cost=2.0)
    clock.charge(4.0)
    assert limits.affords_search([trial(1, seconds=4.0)])


@given(st.integers(1, 3599))
def test_durations_read_what_is_printed(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


def test_hours_are_printed_without_seconds():
    assert format_duration(7559.9) == "2h05m"


@given(st.integers(), st.integers(0, 50))
def test_a_generator_continues_from_its_text(seed, draws):
    rng = random.Random(seed)
    for _ in range(draws):
        rng.gauss(0, 1)
    copy = restored(dump_state(rng))
    assert [copy.gauss(0, 1), copy.random()] == [rng.gauss(0, 1), rng.random()]


def sample(role="candidate", **changes):
    values = {
        "prompt_id": "p",
        "role": role,
        "repeat": 0,
        "tokens": 100,
        "seconds": 1.2,
        "steps": 100,
        "drafted": 0,
        "accepted": 0,
        "draft_seconds": 0.0,
        "verify_seconds": 1.0,
    }
    return Sample(**{**values, **changes})


AR = sample("ar")  # 10 ms a one-row pass
CASES = {
    # tau near 1 and few drafts: steps are one-row passes that commit one token
    "acceptance": {"steps": 95, "drafted": 10, "accepted": 5, "verify_seconds": 0.96, "seconds": 1.0},
    # many drafts, nearly all rejected, and verify pays for them
    "waste": {"steps": 60, "drafted": 1500, "accepted": 40, "verify_seconds": 2.0, "seconds": 2.2},
    # most drafts accepted: what is left is reading the weights once a step
    "weights": {"steps": 20, "drafted": 90, "accepted": 80, "verify_seconds": 0.25, "seconds": 0.3},
    "draft": {"steps": 20, "drafted": 90, "accepted": 80, "verify_seconds": 0.25, "draft_seconds": 0.5, "seconds": 0.8},
    "host": {"steps": 20, "drafted": 90, "accepted": 80, "verify_seconds": 0.25, "seconds": 0.9},
}


@pytest.mark.parametrize("gap", CASES)
def test_the_dominant_gap(gap):
    candidate = sample(**CASES[gap])
    assert describe([AR, candidate, sample("stock")], regime=1).gap == gap
    assert sum(losses([AR, candidate]).values()) == pytest.approx(candidate.seconds)
    assert min(losses([AR, candidate]).values()) >= 0


def test_the_width_is_drafted_nodes_a_committed_token():
    two = [AR, sample(drafted=300, tokens=100), sample(drafted=100, tokens=100)]
    assert describe(two, regime=4).width == 2.0
    assert describe(two, regime=4).regime == 4
    assert describe([AR, sample()], regime=1).width == 0.0


@given(
    st.integers(1, 500),
    st.integers(0, 4000),
    st.floats(0, 1),
    st.floats(1e-4, 10),
    st.floats(0, 10),
    st.floats(0, 10),
)
def test_losses_are_never_negative_and_always_whole(steps, drafted, share, verify, draft, host):
    candidate = sample(
        steps=steps,
        tokens=steps + int(drafted * share),
        drafted=drafted,
        accepted=int(drafted * share),
        verify_seconds=verify,
        draft_seconds=draft,
        seconds=verify + draft + host,
    )
    lost = losses([AR, candidate])
    assert min(lost.values()) >= -1e-9
    assert sum(lost.values()) == pytest.approx(candidate.seconds)


def test_a_descriptor_needs_both_sides():
    with pytest.raises(ValueError, match="role 'ar'"):
        describe([sample()], regime=1)
    with pytest.raises(ValueError, match="role 'candidate'"):
        describe([AR], regime=1)


def test_a_recording_keeps_every_field_and_charges_its_time(tmp_path):
    path, clock = tmp_path / "r.jsonl", ReplayClock()
    attempt = trial(5).attempt
    recorded = RecordingEvaluator(Landscape(), path).evaluate(attempt, "search")
    replay = ReplayEvaluator(path, clock)
    assert replay.evaluate(attempt, "search") == recorded
    assert clock() == recorded.seconds
    assert replay.evaluate(trial(9).attempt, "search").attempt == 9


def test_a_recording_without_the_genome_says_what_to_do(tmp_path):
    path = tmp_path / "r.jsonl"
    RecordingEvaluator(Landscape(), path).evaluate(trial(1).attempt, "search")
    replay = ReplayEvaluator(path, ReplayClock())
    with pytest.raises(InputError, match=r"no confirm evaluation of genome [0-9a-f]{12}(.|\n)*record again"):
        replay.evaluate(trial(1).attempt, "confirm")


def test_a_damaged_recording_is_refused_with_its_line(tmp_path):
    path = tmp_path / "r.jsonl"
    RecordingEvaluator(Landscape(), path).evaluate(trial(1).attempt, "search")
    good = path.read_text()
    path.write_text(good + good[:50])
    with pytest.raises(InputError, match=r"r.jsonl line 2: .*json"):
        ReplayEvaluator(path, ReplayClock())
    path.write_text(json.dumps({**json.loads(good), "surprise": 1}))
    with pytest.raises(InputError, match="line 1: surprise"):
        ReplayEvaluator(path, ReplayClock())
    with pytest.raises(InputError, match="cannot read the recording"):
        ReplayEvaluator(tmp_path / "absent", ReplayClock())
    with pytest.raises(InputError, match="cannot write the recording"):
        RecordingEvaluator(Landscape(), tmp_path / "no" / "r.jsonl").evaluate(trial(1).attempt, "search")
