"""On a terminal: colours, a live bar that goes away, and lines that fit."""

import re

import pytest

from autotune.terminal import BudgetView, TerminalObserver, complain, notice
from autotune.terminal.words import duration, knob_changes, one_line
from space.errors import InputError
from space.genome import Genome
from space.outcome import Outcome

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_the_bar_shows_the_evaluation_and_the_whole(tty, trial, space, stock):
    item = trial(3, {"draft_length": 9})
    with TerminalObserver(tty.console, space, stock, BudgetView(seconds=60, max_evals=9)) as observer:
        observer.evaluation_started(item.attempt)
        observer.evaluation_finished(item, "30s, 5 evals", item.evaluation)
    text = _ESCAPES.sub("", tty.text)
    assert "search" in text
    assert "#3" in text
    assert "\x1b[?25l" in tty.text, "the cursor hides while the bar is there"
    assert tty.text.rindex("\x1b[?25h") > tty.text.rindex("\x1b[?25l"), "and comes back"


def test_a_line_fits_a_terminal(tty, trial, space, stock):
    wrong = trial(1, {"drafter": "suffix"}, Outcome.RUNTIME, reason="x" * 300)
    observer = TerminalObserver(tty.console, space, stock, BudgetView(seconds=60, max_evals=9))
    observer.evaluation_finished(wrong, "30s, 5 evals", None)
    lines = _ESCAPES.sub("", tty.text).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[-1].endswith("xxx...")


def test_outcomes_have_their_colours(tty, trial, space, stock):
    observer = TerminalObserver(tty.console, space, stock, BudgetView(seconds=60, max_evals=9))
    observer.evaluation_finished(trial(1, {}), "", None)
    observer.evaluation_finished(trial(2, {}, Outcome.MISMATCH), "", None)
    assert "\x1b[32mok" in tty.text
    assert "\x1b[1;31mmismatch" in tty.text


def test_a_notice_is_one_line(plain):
    notice(plain.console, "fetching [98 MB] " + "y" * 200)
    assert len(plain.lines) == 1


@pytest.mark.parametrize("message", ["one", "one\ntwo", "one\ntwo\nthree\nfour"])
def test_a_complaint_has_at_most_three_lines(capsys, message):
    complain(InputError(message))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: one\n")
    assert len(err.splitlines()) <= 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0s"), (59.4, "59s"), (59.6, "1m00s"), (125, "2m05s"), (3599.7, "1h00m"), (3720, "1h02m")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_changes_leave_out_defaults_that_only_became_active(space, stock):
    suffix = Genome.complete(space, {"drafter": "suffix", "suffix_depth": 24, "threads": 1})
    assert knob_changes(space, suffix, stock) == "drafter ngram->suffix, threads 2->1"
    deeper = Genome.complete(space, {"drafter": "suffix", "suffix_depth": 32})
    assert knob_changes(space, deeper, stock) == "drafter ngram->suffix, suffix_depth=32"
    assert knob_changes(space, stock, stock) == "same knobs"


def test_a_genome_of_an_older_space_can_still_be_told(space, stock):
    older = Genome.of(stock.knobs | {"forgotten": 3})
    assert knob_changes(space, older, stock) == "forgotten=3"


def test_one_line_folds_and_cuts():
    assert one_line("a\n  b") == "a b"
    assert one_line("abcdefgh", 6) == "abc..."
