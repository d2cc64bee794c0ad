"""Ctrl-C and kill -9 at a real run, then the same command: nothing is counted twice, one evaluation is lost at most."""

import signal
from pathlib import Path

from commands import ROOT, interrupt, is_polite, printed_numbers, read_rest, read_until_evaluation

ENDLESS = ("--max-evals", "1000")


def test_ctrl_c_finishes_the_evaluation_and_the_same_command_continues(place):
    with place.start("--deployment", "tiny.toml", *ENDLESS) as process:
        out = read_until_evaluation(process, 2)
        interrupt(process)
        rest, err = read_rest(process)
    out += rest
    assert (process.returncode, err) == (130, "")
    assert "stopping after this evaluation; the same command continues" in out
    assert "stopped before anything was confirmed; the same command continues" in out
    first = printed_numbers(out)
    assert place.finished() == first
    assert len(first) >= 2
    assert {state for _, _, state in place.attempts()} == {"done"}

    searches = len(first) + 2
    code, again, err = place.tune("--max-evals", str(searches))
    assert (code, err) == (0, "")
    assert f"(continues after {len(first)} evaluations" in again
    second = printed_numbers(again)
    assert first + second == list(range(1, first[-1] + len(second) + 1))
    assert len([line for line in again.splitlines() if " confirm  " in line]) == len(first + second) - searches
    assert place.finished() == first + second


def test_kill_9_loses_at_most_the_evaluation_in_flight(place):
    with place.start("--deployment", "tiny.toml", *ENDLESS) as process:
        out = read_until_evaluation(process, 2)
        workers = children(process.pid)
        assert len(workers) == 2
        process.kill()
        out += read_rest(process)[0]
    assert process.returncode == -signal.SIGKILL
    first = place.finished()
    assert set(printed_numbers(out)) <= set(first), "what was told is stored"
    assert [state for _, _, state in place.attempts()].count("in_flight") <= 1

    code, again, err = place.tune("--max-evals", str(len(first) + 1))
    assert (code, err) == (0, "")
    second = printed_numbers(again)
    assert place.finished() == first + second == list(range(1, len(first + second) + 1))
    states = [state for _, _, state in place.attempts()]
    assert states.count("stale") <= 1
    assert "in_flight" not in states
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


def test_a_run_in_progress_is_read_refused_to_others_and_interrupted_at_once(place):
    with place.start("--deployment", "tiny.toml", *ENDLESS) as process:
        read_until_evaluation(process, 1)
        workers = children(process.pid)
        code, listed, _ = place.call("archive", "list")
        assert (code, "tiny" in listed) == (0, True)
        code, _, err = place.call("--deployment", "tiny.toml", program=ROOT / "run.py")
        assert is_polite(code, err), err
        assert f"in use by process {process.pid}" in err
        interrupt(process)
        assert any("stopping after this evaluation" in line for line in process.stdout)
        interrupt(process)
        _, err = read_rest(process)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
