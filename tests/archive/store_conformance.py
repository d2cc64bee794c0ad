"""What every storage backend must do. Subclass it and give a fixture `store` that is empty and open for writing."""

import math

import archive_records as make
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive.base import Descriptor, Sample
from space.errors import ArchiveError
from space.outcome import Outcome

_amounts = st.floats(min_value=0, max_value=1e6, allow_nan=False)
_counts = st.integers(min_value=0, max_value=10**9)
_texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
_samples = st.builds(
    Sample,
    prompt_id=_texts,
    role=st.sampled_from(["ar", "stock", "candidate"]),
    repeat=_counts,
    tokens=_counts,
    seconds=_amounts,
    steps=_counts,
    drafted=_counts,
    accepted=_counts,
    draft_seconds=_amounts,
    verify_seconds=_amounts,
)

_SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]  # one suite, many backends


class StoreConformance:
    def test_what_goes_in_comes_out_equal_and_in_order(self, store):
        store.begin_run(make.run())
        pairs = [
            (make.attempt(1), make.ok(1)),
            (make.attempt(2, parents=(), operator="init"), make.failed(2)),
            (make.attempt(3), make.failed(3, outcome=Outcome.TIMEOUT)),
            (make.attempt(4), make.confirmation(4)),
        ]
        for started, _ in pairs:
            store.begin_attempt(started)
        for _, evaluation in reversed(pairs):
            store.finish_attempt(evaluation)
        assert store.history("run-a") == pairs
        assert store.latest_run("cpu-smollm2") == make.run()

    @settings(max_examples=25, deadline=None, suppress_health_check=_SHARED)
    @given(samples=st.lists(_samples, max_size=5), reason=_texts, width=st.floats(min_value=0, max_value=1e300))
    def test_any_evaluation_round_trips(self, store, samples, reason, width):
        store.begin_run(make.run())
        number = store.next_number("run-a")
        descriptor = Descriptor(regime=1, gap="waste", width=width)
        evaluation = make.ok(number, reason=reason, descriptor=descriptor, samples=tuple(samples))
        make.record(store, make.attempt(number), evaluation)
        assert store.history("run-a")[-1] == (make.attempt(number), evaluation)

    def test_runs_do_not_mix_and_the_latest_is_the_one_begun_last(self, store):
        for name in ("run-b", "run-a"):
            store.begin_run(make.run(name))
            make.record(store, make.attempt(1, name), make.ok(1, name))
        store.begin_run(make.run("other", deployment_name="elsewhere"))
        assert store.latest_run("cpu-smollm2").id == "run-a"
        assert [attempt.run_id for attempt, _ in store.history("run-b")] == ["run-b"]
        assert store.latest_run("nowhere") is None

    def test_beginning_the_same_run_again_changes_nothing(self, store):
        store.begin_run(make.run())
        store.begin_run(make.run())
        with pytest.raises(ArchiveError, match="another run run-a"):
            store.begin_run(make.run(seed=8))

    def test_finishing_again_counts_once(self, store):
        store.begin_run(make.run())
        make.record(store, make.attempt(1), make.ok(1))
        store.finish_attempt(make.ok(1))
        assert store.history("run-a") == [(make.attempt(1), make.ok(1))]
        with pytest.raises(ArchiveError, match="run-a/1 has finished before"):
            store.finish_attempt(make.ok(1, ratio=9.0))
        assert store.history("run-a") == [(make.attempt(1), make.ok(1))]

    def test_an_attempt_begins_once_and_only_what_began_can_finish(self, store):
        store.begin_run(make.run())
        store.begin_attempt(make.attempt(1))
        with pytest.raises(ArchiveError, match="run-a/1 is in the archive already; the next free number is 2"):
            store.begin_attempt(make.attempt(1))
        with pytest.raises(ArchiveError, match="run-a/2 is not in flight"):
            store.finish_attempt(make.ok(2))

    def test_what_a_killed_session_left_becomes_stale_and_its_number_is_free(self, store):
        store.begin_run(make.run())
        store.begin_run(make.run("run-b"))
        make.record(store, make.attempt(1), make.ok(1))
        store.begin_attempt(make.attempt(2))
        store.begin_attempt(make.attempt(2, "run-b"))
        assert store.mark_stale("run-a") == 1
        assert store.mark_stale("run-a") == 0
        with pytest.raises(ArchiveError, match="run-a/2 is not in flight"):
            store.finish_attempt(make.ok(2))
        assert store.next_number("run-a") == 2
        make.record(store, make.attempt(2), make.ok(2))
        store.finish_attempt(make.ok(2, "run-b"))
        assert [attempt.number for attempt, _ in store.history("run-a")] == [1, 2]

    @pytest.mark.parametrize(
        ("evaluation", "message"),
        [
            (make.ok(1, score=None), "run-a/1: outcome ok needs a score"),
            (make.failed(1, score=make.score()), "run-a/1: outcome mismatch excludes a score"),
            (make.ok(1, descriptor=None), "needs a descriptor"),
            (make.ok(1, descriptor=Descriptor(regime=0, gap="host", width=1)), "regime = 0 lies outside"),
            (make.ok(1, descriptor=Descriptor(regime=1, gap="hots", width=1)), "did you mean 'host'"),
            (make.ok(1, descriptor=Descriptor(regime=1, gap="host", width=math.inf)), "width = inf"),
            (make.ok(1, descriptor=Descriptor(regime=1, gap="host", width=math.nan)), "width = nan"),
        ],
    )
    def test_what_could_not_be_ranked_is_refused_before_it_is_stored(self, store, evaluation, message):
        store.begin_run(make.run())
        store.begin_attempt(make.attempt(1))
        with pytest.raises(ArchiveError, match=message):
            store.finish_attempt(evaluation)
        assert store.history("run-a") == []
        store.finish_attempt(make.ok(1))
