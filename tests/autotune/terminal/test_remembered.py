"""Golden output of `archive list`, `top` and `show`."""

from pathlib import Path

import pytest

from archive.base import Environment, Forced
from archive.queries import AttemptDetail, GenomeDetail, RunDetail, RunSummary, TopEntry
from archive.summary import summarise
from autotune.terminal import show_detail, show_runs, show_top
from space.outcome import Outcome

HERE = Environment(
    host="box", cpu="a cpu", cores=2, memory_gib=7.8, python="3.11.9", torch="2.13", system="Linux", code="c0de"
)
RUN = RunSummary(
    id="r1",
    deployment_name="mine",
    started="2026-11-30 12:00",
    seed=7,
    environment=HERE,
    seconds=148,
    finished=5,
    ok=4,
    best_ratio_ar=1.75,
    confirmed_ratio_ar=None,
)


@pytest.fixture
def attempt(trial):
    def _attempt(*args, state="done", **options):
        item = trial(*args, **options)
        return AttemptDetail(
            attempt=item.attempt,
            deployment_name="mine",
            state=state,
            started="12:01",
            evaluation=item.evaluation if state == "done" else None,
            roles=summarise(item.evaluation.samples) if state == "done" else (),
        )

    return _attempt


def test_list(plain):
    show_runs(plain.console, Path("a.sqlite"), [RUN])
    assert plain.lines == [
        "a.sqlite",
        "run   deployment   basis      started             time   evals ok    x AR   confirmed",
        "─────────────────────────────────────────────────────────────────────────────────────",
        "r1    mine         measured   2026-11-30 12:00   2m28s        4/5   1.75x           -",
    ]


def test_an_empty_archive_says_how_to_fill_it(plain):
    show_runs(plain.console, Path("a.sqlite"), [])
    assert plain.text == "a.sqlite holds no run; start one with: python run.py --deployment cpu-smollm2\n"


def test_top(plain, trial, space, stock):
    item = trial(2, {"draft_length": 9})
    entry = TopEntry(
        deployment_name="mine",
        run_id="r1",
        number=2,
        genome=item.attempt.genome,
        evaluation=item.evaluation,
        environment=HERE,
    )
    show_top(plain.console, [entry], space, stock)
    assert plain.lines == [
        "genome         deployment   stage     x AR   x stock   spread    tau   forced   change against stock",
        "────────────────────────────────────────────────────────────────────────────────────────────────────",
        f"{entry.genome.id}   mine         search   1.50x     1.20x     2.1%   2.31      320   draft_length 6->9",
    ]


def test_an_empty_top_says_so(plain, space, stock):
    show_top(plain.console, [], space, stock)
    assert plain.text == "no evaluation is ok yet\n"


def test_show_a_run(plain):
    counts = {Outcome.OK: 4, Outcome.MISMATCH: 1}
    show_detail(plain.console, RunDetail(summary=RUN, deployment="{...}", space="{}", outcomes=counts))
    assert plain.lines == [
        "run r1",
        "  deployment         mine",
        "  basis              measured",
        "  content            {...}",
        "  started            2026-11-30 12:00",
        "  seed               7",
        "  machine            box: a cpu, 2 cores, 7.8 GiB",
        "  software           Linux, Python 3.11.9, torch 2.13, code c0de",
        "  best               1.75x AR, confirmed -",
        "  time               2m28s",
        "  evaluations        4 ok, 1 mismatch",
    ]


def test_show_an_attempt_prints_the_raw_samples(plain, attempt, sample):
    show_detail(plain.console, attempt(2, {"drafter": "none"}, samples=(sample,)))
    assert plain.lines[1:3] == ["  drafter            none", "  threads            2"]
    assert plain.lines[3:] == [
        "",
        "r1/2: ok",
        "  deployment         mine",
        "  started            12:01",
        "  operator           tpe",
        "  parents            none",
        "  stage              search, 2s",
        "  speed              1.50x AR, 1.20x stock, spread 2.1%",
        "  tau                2.31",
        "  forced tokens      320 of 320, 1 near-tie",
        "",
        "role        tok/s   spread    tau   tokens   seconds   draft s   verify s   drafted   accepted",
        "──────────────────────────────────────────────────────────────────────────────────────────────",
        "candidate    51.2     0.0%   2.10       64      1.25      0.01       1.20       180         34",
        "",
        "prompt   role        repeat   tokens   seconds   steps   drafted   accepted   draft s   verify s",
        "────────────────────────────────────────────────────────────────────────────────────────────────",
        "chat-1   candidate        0       64     1.250      30       180         34     0.010      1.200",
    ]


def test_show_a_genome_prints_each_attempt_without_raw_samples(plain, attempt, sample):
    forced = Forced(tokens=9, exact=8, near_ties=0, first_mismatch="chat-1 token 8: 88 for 91")
    attempts = (
        attempt(2, {}, samples=(sample,)),
        attempt(3, {}, Outcome.MISMATCH, reason="a\nb", forced=forced),
        attempt(4, {}, state="in_flight"),
    )
    show_detail(plain.console, GenomeDetail(genome=attempts[0].attempt.genome, attempts=attempts))
    assert "chat-1   candidate" not in plain.text
    assert [line for line in plain.lines if line.startswith("r1/")] == ["r1/2: ok", "r1/3: mismatch", "r1/4: in flight"]
    start = plain.lines.index("  reason             a b")
    assert plain.lines[start + 1 : start + 3] == [
        "  forced tokens      8 of 9",
        "  first mismatch     chat-1 token 8: 88 for 91",
    ]
