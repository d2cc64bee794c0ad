"""A worker process seen from the tuner: how each way of failing is told, and that nothing stays behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.client import ROOT, Launch, RequestFailed, RequestRefused, WorkerClient
from engine.protocol import Force, Generate
from space.outcome import Outcome

HERE = str(Path(__file__).parent)


def ask(behaviour: str) -> Generate:
    return Generate(knobs={"drafter": behaviour}, prompt=(1,), max_tokens=2, stop_ids=(7,))


def launch(folder: Path, module: str = "fake_worker") -> Launch:
    return Launch(role="candidate", model=folder, max_context=128, threads=1, module=module, path=(str(ROOT), HERE))


@pytest.fixture
def client(tmp_path):
    with WorkerClient(launch(tmp_path)) as client:
        yield client


def is_running(pid: int) -> bool:
    """False for a process that is gone, or dead and not yet collected by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def refused(client: WorkerClient, behaviour: str, timeout: float = 20.0) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        client.generate(ask(behaviour), timeout)
    return caught.value


def test_an_answer_is_timed_from_outside(client):
    answer, seconds = client.generate(ask("well"), 20.0)
    assert answer.tokens == (1, 2)
    assert 0 < seconds < 20


def test_a_timeout_kills_the_worker_and_its_children(client, tmp_path):
    client.start()
    error = refused(client, "hang", timeout=1.0)
    assert error.outcome is Outcome.TIMEOUT
    assert str(error) == "no answer within 1 s; the worker was killed"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text(encoding="utf-8").split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(map(is_running, pids)))
    assert client.generate(ask("well"), 20.0)[0].tokens == (1, 2), "the next request starts a new worker"


@pytest.mark.parametrize(
    ("behaviour", "outcome", "message"),
    [
        ("die", Outcome.RUNTIME, "the worker ended with code 3: the last line"),
        ("killed", Outcome.OOM, "the worker was killed (SIGKILL), most likely for memory"),
        ("garbage", Outcome.RUNTIME, "the worker's answer is not the protocol: b'not json'"),
        ("other", Outcome.RUNTIME, "the worker answered 'ready' instead of Generated"),
    ],
)
def test_a_worker_that_fails_is_replaced(client, behaviour, outcome, message):
    error = refused(client, behaviour)
    assert (error.outcome, str(error)) == (outcome, message)
    assert not isinstance(error, RequestRefused)
    assert client.generate(ask("well"), 20.0)[0].tokens == (1, 2)


def test_an_answer_without_an_end_is_cut(client, monkeypatch):
    monkeypatch.setattr("autotune.client._LONGEST_REPLY", 1 << 20)
    error = refused(client, "flood")
    assert (error.outcome, str(error)) == (Outcome.RUNTIME, "the worker's answer is longer than 1048576 bytes")


def test_a_worker_that_only_closes_its_output_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr("autotune.client._END_SECONDS", 0.3)
    error = refused(client, "close")
    assert (error.outcome, str(error)) == (Outcome.RUNTIME, "the worker closed its output and went on running")
    assert error.abnormal


def test_a_worker_that_does_not_read_is_not_waited_for(client):
    client.generate(ask("deaf"), 20.0)
    long = Generate(knobs={"drafter": "well"}, prompt=tuple(range(200_000)), max_tokens=2, stop_ids=())
    with pytest.raises(RequestFailed, match="the request was not read within 1 s") as caught:
        client.generate(long, 1.0)
    assert caught.value.outcome is Outcome.TIMEOUT
    assert client.generate(ask("well"), 20.0)[0].tokens == (1, 2)


def test_a_refused_request_leaves_the_worker_alive(client):
    client.start()
    before = client._process.pid
    error = refused(client, "refuse")
    assert isinstance(error, RequestRefused)
    assert (error.outcome, str(error), error.abnormal) == (Outcome.OOM, "too big", False)
    client.generate(ask("well"), 20.0)
    assert client._process.pid == before


def test_a_worker_may_not_answer_before_it_is_asked(client):
    client.generate(ask("twice"), 20.0)
    assert wait_until(lambda: client._buffer or client._has_spoken())
    error = refused(client, "well")
    assert (error.outcome, str(error)) == (Outcome.RUNTIME, "the worker answered before it was asked")
    client.generate(ask("well"), 20.0)


def test_a_worker_that_died_in_between_is_told(client):
    client.start()
    os.kill(client._process.pid, 9)
    client._process.wait()
    assert refused(client, "well").outcome is Outcome.OOM


def test_a_worker_that_cannot_load_its_model(tmp_path):
    folder = tmp_path / "unloadable"
    with WorkerClient(launch(folder)) as client:
        for _ in range(2):
            with pytest.raises(RequestRefused, match="cannot read model file") as caught:
                client.start()
            assert caught.value.outcome is Outcome.RUNTIME
            assert client._process is None, "the failed process is not left behind"


def test_closing_leaves_no_process(client):
    client.start()
    process = client._process
    client.close()
    client.close()
    assert process.returncode is not None
    assert process.stdin.closed
    assert process.stdout.closed


ORPHAN = """
import sys, time
from pathlib import Path
from test_client import WorkerClient, launch
client = WorkerClient(launch(Path(sys.argv[1]), sys.argv[2]))
client.start()
sys.stdout.write(f"{client._process.pid}\\n")
sys.stdout.flush()
time.sleep(600)
"""


def test_the_real_worker_fails_in_words_and_ends_with_its_parent(tiny_checkpoint, tmp_path):
    with WorkerClient(launch(tmp_path, "engine.worker")) as client, pytest.raises(RequestRefused, match="config.json"):
        client.start()
    with WorkerClient(launch(tiny_checkpoint, "engine.worker")) as client:
        with pytest.raises(RequestRefused, match="must not judge itself"):
            client.force(Force(prompt=(1,), tokens=(2,)), 20.0)
        with pytest.raises(RequestRefused, match="no knob wings"):
            client.generate(Generate(knobs={"wings": 2}, prompt=(1,), max_tokens=2, stop_ids=()), 20.0)
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tiny_checkpoint), "engine.worker"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), HERE])},
    )
    with parent:
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.kill()
    assert wait_until(lambda: not is_running(worker))
