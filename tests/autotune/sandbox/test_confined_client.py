"""A worker process in a sandbox, seen through the client: it answers as one outside, and its limits are outcomes."""

from dataclasses import replace
from pathlib import Path

import pytest
from confining import LIMITS

from autotune.client import ROOT, Launch, RequestFailed, WorkerClient
from autotune.sandbox.base import Confinement
from autotune.sandbox.workspace import Workspace
from engine.protocol import Generate
from space.outcome import Outcome
from space.patch import CodeTree

FAKE = (Path(__file__).parents[1] / "fake_worker.py").read_text(encoding="utf-8")
EATER = "import time\nheld = bytearray(b'x' * (300 << 20))\ntime.sleep(60)\n"


@pytest.fixture
def started(sandbox, tmp_path):
    """Starts `engine.fake` in a sandbox; by default the worker that behaves as it is asked."""
    model = tmp_path / "model"
    model.mkdir()
    clients, workspaces = [], []

    def start(code=FAKE, **limits):
        tree = CodeTree.read(ROOT).changed({"engine/fake.py": code})
        workspaces.append(Workspace(tree, (model,)))
        confinement = Confinement(sandbox=sandbox, view=workspaces[-1].view, limits=replace(LIMITS, **limits))
        launch = Launch(
            role="candidate", model=model, max_context=64, threads=1, module="engine.fake", confinement=confinement
        )
        clients.append(WorkerClient(launch))
        return clients[-1]

    yield start
    for opened in (*clients, *workspaces):
        opened.close()


def ask(behaviour):
    return Generate(knobs={"drafter": behaviour}, prompt=(1,), max_tokens=2, stop_ids=(7,))


def refused(client, behaviour, timeout=20.0):
    with pytest.raises(RequestFailed) as caught:
        client.generate(ask(behaviour), timeout)
    return caught.value.outcome, str(caught.value)


def test_it_answers_and_fails_as_one_outside(started, monkeypatch):
    monkeypatch.setattr("autotune.client._LONGEST_REPLY", 1 << 20)
    client = started()
    assert client.generate(ask("well"), 20.0)[0].tokens == (1, 2)
    assert refused(client, "die") == (Outcome.RUNTIME, "the worker ended with code 3: the last line")
    assert refused(client, "killed")[0] is Outcome.OOM
    assert refused(client, "flood")[0] is Outcome.RUNTIME
    assert client.generate(ask("well"), 20.0)[0].tokens == (1, 2), "the next request starts a new worker"


def test_a_survivor_that_holds_the_output_does_not_hold_up_the_tuner(started):
    assert refused(started(), "hold") == (Outcome.RUNTIME, "the worker ended with code 4: no message")


def test_a_broken_limit_is_told_as_such(started):
    client = started(EATER, memory=200 << 20)
    with pytest.raises(RequestFailed) as caught:
        client.start()
    assert caught.value.outcome is Outcome.OOM, caught.value


def test_its_whole_life_is_limited(started):
    client = started(wall=2.0)
    client.generate(ask("deaf"), 20.0)
    assert refused(client, "well") == (Outcome.TIMEOUT, "it ran longer than 2 s")
