"""Golden output at width 100 without a terminal: no colours, no bars, one line a record."""

from dataclasses import replace
from pathlib import Path

import pytest

from archive.base import Forced
from autotune.terminal import (
    BenchReport,
    BudgetView,
    Check,
    GroupLine,
    StartBlock,
    Summary,
    SystemRow,
    TerminalObserver,
    VerifyReport,
    show_bench,
    show_checks,
    show_start,
    show_summary,
    show_verify,
)
from space.outcome import Outcome

ROWS = (
    SystemRow(name="AR", tokens_per_second=30, ratio_ar=1, ratio_stock=0.8, tau=1),
    SystemRow(
        name="stock",
        tokens_per_second=37.5,
        ratio_ar=1.25,
        ratio_stock=1,
        spread=0.01,
        tau=1.6,
        forced=Forced(tokens=320, exact=320, near_ties=0),
    ),
    SystemRow(
        name="best #2",
        tokens_per_second=52.5,
        ratio_ar=1.75,
        ratio_stock=1.4,
        spread=0.021,
        tau=2.314,
        forced=Forced(tokens=320, exact=319, near_ties=1),
    ),
)


def expect(printed, text):
    assert printed.text == text.removeprefix("\n")
    assert "\x1b" not in printed.text


def test_the_start_block(plain):
    block = StartBlock(
        version="0.1.0",
        deployment="mine",
        signature="5f0c",
        model="a model",
        hardware="2 cores",
        seconds=150,
        max_evals=200,
        archive=Path("/home/a.sqlite"),
        seed=7,
        finished=3,
    )
    show_start(plain.console, block)
    expect(
        plain,
        """
SpecPilot 0.1.0
  deployment  mine (5f0c)
  model       a model
  hardware    2 cores
  budget      2m30s, 200 evaluations
  archive     /home/a.sqlite (continues after 3 evaluations; --fresh starts anew)
  seed        7

""",
    )


def test_one_line_an_evaluation(plain, trial, space, stock):
    first, better = trial(1, {}), trial(2, {"draft_length": 9}, ratio_ar=1.75)
    wrong = trial(
        3,
        {"drafter": "suffix", "suffix_depth": 32},
        Outcome.MISMATCH,
        reason="token 17 of chat-1 is 88,\nstock says [91]",
        forced=Forced(tokens=320, exact=300, near_ties=0),
    )
    again = trial(4, {"draft_length": 9}, ratio_ar=1.7, stage="confirm")
    with TerminalObserver(plain.console, space, stock, BudgetView(seconds=60, max_evals=9)) as observer:
        for item, best in ((first, first), (better, better), (wrong, better), (again, better)):
            observer.evaluation_started(item.attempt)
            observer.evaluation_finished(item, f"{60 - item.attempt.number}s, 5 evals", best.evaluation)
    expect(
        plain,
        """
   # outcome     x AR x stock spread   tau forced by        left             change (* a new best)
   1 ok         1.50x   1.20x   2.1%  2.31    320 tpe       59s, 5 evals     * same knobs
   2 ok         1.75x   1.40x   2.1%  2.31    320 tpe       58s, 5 evals     * draft_length 6->9
"""
        "   3 mismatch       -       -      -     - 300/320 tpe       57s, 5 evals     "
        "token 17 of chat-1 is 88, stock says [91] | draft_length 9->6, drafter ngram->suffix, suffix_depth=32\n"
        "   4 ok         1.70x   1.36x   2.1%  2.31    320 confirm   56s, 5 evals     same knobs\n",
    )


def test_a_continued_run_tells_changes_against_the_best_of_before(plain, trial, space, stock):
    before, now = trial(5, {"draft_length": 9}), trial(6, {"draft_length": 9, "threads": 1}, ratio_ar=1.2)
    budget = BudgetView(seconds=60, max_evals=9, seconds_spent=20, evals_spent=5)
    with TerminalObserver(plain.console, space, stock, budget, [before], best=before.evaluation) as observer:
        observer.evaluation_started(now.attempt)
        observer.evaluation_finished(now, "30s, 3 evals", before.evaluation)
    assert plain.lines[-1].endswith("30s, 3 evals     threads 2->1")


def test_the_final_table(plain, trial):
    summary = Summary(
        deployment="mine",
        seconds=148.2,
        rows=ROWS,
        counts={Outcome.MISMATCH: 1, Outcome.OK: 4, Outcome.OOM: 0},
        best=trial(2, {"draft_length": 9}).attempt.genome,
        export=Path("exports/mine.json"),
    )
    show_summary(plain.console, summary)
    expect(
        plain,
        """

mine
          tok/s    x AR   x stock   spread    tau            forced tokens
──────────────────────────────────────────────────────────────────────────
AR         30.0   1.00x     0.80x        -   1.00                        -
stock      37.5   1.25x     1.00x     1.0%   1.60               320 of 320
best #2    52.5   1.75x     1.40x     2.1%   2.31   320 of 320, 1 near-tie

evaluations: 5 in 2m28s: 4 ok, 1 mismatch
best: d12c4b556503  draft_length=9 drafter=ngram threads=2
exported to exports/mine.json; use it:
  python run.py verify --config exports/mine.json
  python run.py bench --config exports/mine.json
""",
    )


def test_a_run_without_a_result_says_so(plain):
    summary = Summary(
        deployment="m", seconds=1, rows=ROWS[:1], counts={Outcome.OOM: 2}, best=None, export=None, without="why"
    )
    show_summary(plain.console, summary)
    assert plain.lines[-2:] == ["evaluations: 2 in 1s: 2 oom", "why"]


@pytest.mark.parametrize(("ratio", "told"), [(0.83, True), (1.0, False)])
def test_a_best_that_is_slower_than_stock_is_told(plain, ratio, told):
    rows = (*ROWS[:2], replace(ROWS[2], ratio_stock=ratio))
    show_summary(plain.console, Summary(deployment="m", seconds=1, rows=rows, counts={}, best=None, export=None))
    assert any("stock was faster than the best" in line for line in plain.lines) == told


def test_bench(plain):
    group = GroupLine(group="chat", ratio_ar=1.2, ratio_stock=1.0, tau=1.4)
    show_bench(plain.console, BenchReport(config=Path("x.json"), rows=ROWS, groups=(group,)))
    assert plain.lines[0] == "x.json"
    assert plain.lines[-3:] == [
        "group    x AR   x stock    tau",
        "──────────────────────────────",
        "chat    1.20x     1.00x   1.40",
    ]


def test_verify(plain):
    show_verify(
        plain.console,
        VerifyReport(config=Path("x.json"), prompts=10, forced=Forced(tokens=640, exact=639, near_ties=1)),
    )
    bad = Forced(tokens=640, exact=600, near_ties=0, first_mismatch="chat-1 token 8: 88 for 91")
    show_verify(plain.console, VerifyReport(config=Path("x.json"), prompts=10, forced=bad))
    expect(
        plain,
        """
x.json: 640 of 640 tokens forced on 10 prompts that the search never saw: equal to stock
  1 of them near-ties, within the noise of stock against itself
x.json: 600 of 640 tokens forced on 10 prompts that the search never saw: NOT equal to stock
  first mismatch: chat-1 token 8: 88 for 91
""",
    )


def test_doctor(plain):
    checks = [
        Check(name="python", value="3.11"),
        Check(name="model", value="not cached", ok=False, remedy="it is fetched on first use"),
    ]
    show_checks(plain.console, checks)
    expect(
        plain,
        """
ok      python       3.11
missing model        not cached
        it is fetched on first use
""",
    )
