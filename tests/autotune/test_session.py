"""Pieces of the main job that need no worker: which run continues, which prompts are fresh, Ctrl-C, and doctor."""

import signal
import threading
from dataclasses import replace

import pytest

from archive.base import Attempt, Environment, Evaluation, RunRecord
from archive.store import Archive
from autotune import doctor
from autotune.environment import environment
from autotune.prepared import prepare
from autotune.session import LazyEvaluator, fresh_prompts
from autotune.terminal import make_console
from autotune.tune import StopFlag, continued_run
from engine.tokenizer import ChatTokenizer
from space.deployment import Workload
from space.errors import InputError
from space.genome import Genome
from space.outcome import Outcome
from space.prompts import Prompt

HERE = Environment(
    host="box", cpu="c", cores=2, memory_gib=4.0, python="3.11", torch="2.13", system="Linux", code="abc"
)
RUN = RunRecord(
    id="old",
    deployment_name="d",
    deployment='{"a":1,"b":{"c":2}}',
    space='{"k":1}',
    prompts="p0",
    seed=0,
    environment=HERE,
)


@pytest.fixture
def archive(tmp_path):
    with Archive.open(tmp_path / "archive.sqlite") as archive:
        yield archive


def begin(archive, number, *, finish=True):
    genome = Genome.of({"drafter": "none"})
    archive.begin_attempt(Attempt(number=number, run_id="old", genome=genome, parents=(), operator="o", rng_state=""))
    if finish:
        ending = Evaluation(
            attempt=number, run_id="old", stage="search", outcome=Outcome.RUNTIME, reason="why", seconds=1.0
        )
        archive.finish_attempt(ending)


def test_the_first_run_begins(archive):
    assert continued_run(archive, RUN) == RUN
    assert archive.latest_run("d") == RUN


def test_the_same_run_continues_and_what_was_in_flight_is_stale(archive):
    archive.begin_run(RUN)
    begin(archive, 1)
    begin(archive, 2, finish=False)
    assert continued_run(archive, replace(RUN, id="new")) == RUN
    begin(archive, 2)
    assert [attempt.number for attempt, _ in archive.history("old")] == [1, 2]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"deployment": '{"a":1,"b":{"c":3}}'}, r"b\.c: 2 -> 3"),
        ({"space": '{"k":2}'}, r"space\.k: 1 -> 2"),
        ({"seed": 4}, "seed: 0 -> 4"),
        ({"environment": replace(HERE, code="xyz")}, 'environment.code: "abc" -> "xyz"'),
    ],
)
def test_a_run_that_differs_is_refused_once_it_has_measured(archive, change, difference):
    new = replace(RUN, id="new", **change)
    archive.begin_run(RUN)
    begin(archive, 1)
    with pytest.raises(InputError, match=difference):
        continued_run(archive, new)
    assert archive.latest_run("d") == RUN


def test_many_differences_are_counted(archive):
    archive.begin_run(RUN)
    begin(archive, 1)
    other = replace(HERE, host="h", cpu="x", code="y", cores=3)
    with pytest.raises(InputError, match="and 1 more\nStart anew with --fresh"):
        continued_run(archive, replace(RUN, id="new", environment=other))


def test_a_run_that_never_measured_stands_in_nobodys_way(archive):
    archive.begin_run(RUN)
    begin(archive, 1, finish=False)
    new = replace(RUN, id="new", deployment='{"a":2}')
    assert continued_run(archive, new) == new
    assert archive.latest_run("d") == new


def prompt(name, group="g", text="hello"):
    return Prompt(id=name, group=group, messages=({"role": "user", "content": text},))


def test_fresh_prompts_are_those_that_nobody_saw():
    prompts = (prompt("a"), prompt("b"), prompt("c"), prompt("d"), prompt("x", "h"), prompt("y", "h"))
    assert [p.id for p in fresh_prompts(prompts, ("a", "x"), 2)] == ["b", "c", "y"]
    with pytest.raises(InputError, match="no prompt is left"):
        fresh_prompts(prompts[:1], ("a",), 2)


def test_a_prompt_that_does_not_fit_is_named(tiny_checkpoint):
    tokenizer = ChatTokenizer(tiny_checkpoint)
    (fits,) = prepare([prompt("short")], tokenizer, workload=Workload(), max_tokens=8, max_context=128)
    assert fits.tokens == tokenizer.encode(prompt("short").messages)
    exactly = len(fits.tokens) + 8
    prepare([prompt("short")], tokenizer, workload=Workload(), max_tokens=8, max_context=exactly)
    with pytest.raises(
        InputError, match=f"'short' has {len(fits.tokens)} tokens; .* exceeds max_context {exactly - 1}"
    ):
        prepare([prompt("short")], tokenizer, workload=Workload(), max_tokens=8, max_context=exactly - 1)


def test_the_evaluator_is_made_once_and_late():
    made = []

    class Fake:
        def evaluate(self, attempt, stage):
            return (attempt, stage)

    lazy = LazyEvaluator(lambda: made.append(1) or Fake())
    assert made == []
    assert lazy.evaluate(1, "search") == (1, "search")
    lazy.evaluate(2, "search")
    assert made == [1]


def test_ctrl_c_once_asks_and_twice_interrupts(capsys):
    before = signal.getsignal(signal.SIGINT)
    flag = StopFlag(make_console())
    with flag.listening():
        assert not flag()
        signal.raise_signal(signal.SIGINT)
        assert flag()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().out.count("the same command continues") == 1


def test_the_environment_is_the_same_twice():
    assert environment() == environment()
    assert len(environment().code) == 12


def test_doctor_tells_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPILOT_HOME", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(doctor, "_PACKAGES", ("rich", "no-such-package"))
    monkeypatch.setattr(doctor, "memory_gib", lambda: 1.0)
    found = {check.name: check for check in doctor.checks()}
    assert found["rich"].ok
    assert (found["no-such-package"].ok, found["no-such-package"].remedy) == (False, "pip install -e .")
    assert (found["memory"].ok, found["disk"].ok) == (False, True)
    assert "not cached" in found["model"].value
    assert str(tmp_path) in found["disk"].value
