import archive_records as make
import pytest

from archive.queries import AttemptDetail, GenomeDetail, RunDetail, list_runs, outcome_counts, show, top
from archive.store import Archive
from space.errors import ArchiveError
from space.outcome import Outcome


@pytest.fixture
def archive(tmp_path):
    with Archive.open(tmp_path / "archive.sqlite") as archive:
        archive.begin_run(make.run("aa11"))
        make.record(archive, make.attempt(1, "aa11", genome=make.genome(6)), make.ok(1, "aa11", 1.5))
        make.record(archive, make.attempt(2, "aa11", genome=make.genome(8)), make.ok(2, "aa11", 2.5))
        make.record(archive, make.attempt(3, "aa11", genome=make.genome(9)), make.failed(3, "aa11"))
        archive.begin_attempt(make.attempt(4, "aa11", genome=make.genome(10)))
        archive.mark_stale("aa11")
        make.record(archive, make.attempt(4, "aa11", genome=make.genome(8)), make.confirmation(4, "aa11", 1.9))
        archive.begin_attempt(make.attempt(5, "aa11", genome=make.genome(12)))
        archive.begin_run(make.run("aa22", deployment_name="other", environment=make.environment(host="far")))
        make.record(archive, make.attempt(1, "aa22", genome=make.genome(8)), make.ok(1, "aa22", 2.2))
    with Archive.open(tmp_path / "archive.sqlite", read_only=True) as archive:
        yield archive


def test_list_names_runs_newest_first(archive):
    other, run = list_runs(archive)
    assert (other.id, other.deployment_name, other.environment.host) == ("aa22", "other", "far")
    assert (run.id, run.seed, run.finished, run.ok) == ("aa11", 7, 4, 3)
    spent = [make.ok(1), make.ok(2), make.failed(3), make.confirmation(4)]
    assert run.seconds == pytest.approx(sum(evaluation.seconds for evaluation in spent))
    assert (run.best_ratio_ar, run.confirmed_ratio_ar, other.confirmed_ratio_ar) == (2.5, 1.9, None)
    assert run.started.endswith("Z")


def test_a_run_without_attempts_is_listed(tmp_path):
    with Archive.open(tmp_path / "archive.sqlite") as archive:
        assert list_runs(archive) == []
        assert top(archive) == []
        archive.begin_run(make.run())
        [run] = list_runs(archive)
        assert (run.finished, run.ok, run.seconds, run.best_ratio_ar) == (0, 0, 0.0, None)


def test_top_prefers_the_confirmation_of_a_genome(archive):
    entries = [(entry.run_id, entry.number, entry.evaluation.score.ratio_ar) for entry in top(archive)]
    assert entries == [("aa22", 1, 2.2), ("aa11", 4, 1.9), ("aa11", 1, 1.5)]
    assert top(archive, limit=1)[0].environment.host == "far"
    assert [entry.number for entry in top(archive, "cpu-smollm2")] == [4, 1]


def test_top_of_an_unknown_deployment(archive):
    with pytest.raises(ArchiveError, match="no run of deployment 'cpu-smolm2'; did you mean 'cpu-smollm2'"):
        top(archive, "cpu-smolm2")


def test_outcomes_count_failures_and_what_was_killed(archive):
    counts = outcome_counts(archive, "aa11")
    assert counts == {Outcome.OK: 3, Outcome.MISMATCH: 1, Outcome.STALE: 1}
    assert list(counts)[0] is Outcome.OK
    assert outcome_counts(archive)[Outcome.OK] == 4


def test_show_a_run(archive):
    detail = show(archive, "aa11")
    assert isinstance(detail, RunDetail)
    assert detail.summary == list_runs(archive)[1]
    assert detail.deployment == make.run().deployment
    assert detail.outcomes[Outcome.MISMATCH] == 1


def test_show_a_genome_in_every_run(archive):
    genome = make.genome(8)
    detail = show(archive, genome.id[:7])
    assert isinstance(detail, GenomeDetail)
    assert detail.genome == genome
    assert [(a.attempt.run_id, a.attempt.number) for a in detail.attempts] == [("aa11", 2), ("aa11", 4), ("aa22", 1)]
    assert [a.evaluation.stage for a in detail.attempts] == ["search", "confirm", "search"]


def test_show_an_attempt(archive):
    detail = show(archive, "aa11/2")
    assert isinstance(detail, AttemptDetail)
    assert detail.attempt.parents == ("0123456789ab",)
    assert detail.evaluation == make.ok(2, "aa11", 2.5)
    assert detail.deployment_name == "cpu-smollm2"
    ar, stock, candidate = detail.roles
    assert (ar.role, stock.role, candidate.role) == ("ar", "stock", "candidate")
    assert (candidate.requests, candidate.repeats, candidate.tokens) == (6, 3, 384)
    assert candidate.tokens_per_second == pytest.approx(64 / 1.01)  # the median of repeats at 1, 1.01 and 1.02 s
    assert candidate.spread == pytest.approx(1.4826 * 0.01 / 1.01)
    assert (candidate.tau, ar.tau) == (63 / 32, 63 / 64)  # the first token comes from the prefill
    assert (candidate.drafted, candidate.accepted) == (600, 192)


def test_show_takes_the_living_attempt_of_a_number(archive):
    assert show(archive, "aa11/4").state == "done"
    assert show(archive, "aa11/5").state == "in_flight"
    assert show(archive, "aa11/5").evaluation is None
    stale = show(archive, make.genome(10).id)
    assert [(a.state, a.evaluation, a.roles) for a in stale.attempts] == [("stale", None, ())]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aa", r"'aa' begins 2 ids: aa22, aa11\nGive more of it"),
        ("ab11", "no run or genome 'ab11'; did you mean 'aa11'"),
        ("", "no run or genome ''"),
        ("zz/1", "no run 'zz'"),
        ("aa/1", "'aa' begins 2 ids"),
        ("aa11/9", "run aa11 has no attempt '9'; its last one is 5"),
        ("aa11/two", "run aa11 has no attempt 'two'"),
        ("aa11/" + "9" * 30, "too large"),
        ("%", "no run or genome '%'"),
    ],
)
def test_ids_that_name_nothing(archive, text, message):
    with pytest.raises(ArchiveError, match=message) as caught:
        show(archive, text)
    assert len(str(caught.value).splitlines()) <= 3
