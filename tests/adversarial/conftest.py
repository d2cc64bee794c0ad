"""A court on the tiny checkpoint, and one on the embedded model where that is cached."""

import json
import math
from pathlib import Path

import pytest
from court import Court
from tiny_checkpoint import write_tiny_checkpoint
from tiny_deployment import write_deployment

from autotune import measure, session
from autotune.session import Session
from engine.weights.source import EMBEDDED_FOLDER, home_folder
from space.deployment import find_deployment, read_deployment

STOP = 184
"""A token that this model often emits: some answers must stop, others end at their length."""


@pytest.fixture(scope="module")
def calm():
    """Requests of milliseconds are noisy; these tests are about tokens. The cheats can be imported by a worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "UNSTABLE_ABOVE", math.inf)
        patch.setattr(measure, "_MOST_DRIFT", math.inf)
        patch.setattr(session, "usable_cores", lambda: 1)
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        yield


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopping")
    checkpoint = write_tiny_checkpoint(folder / "model")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (checkpoint / "config.json").write_text(json.dumps(config | {"eos_token_id": [257, STOP]}), encoding="utf-8")
    return read_deployment(write_deployment(folder, checkpoint, max_tokens=48))


@pytest.fixture(scope="module")
def court(calm, deployment, tmp_path_factory):
    with Session(deployment, tmp_path_factory.mktemp("home"), lambda text: None) as one:
        yield Court(one, deployment)


@pytest.fixture(scope="module")
def real_court(calm, tmp_path_factory):
    """The shipped model on a prompt whose answer drafters often get wrong."""
    cached = home_folder() / EMBEDDED_FOLDER
    if not (cached / "config.json").exists():
        pytest.skip(f"the embedded model is not cached at {cached}; the main job fetches it")
    prompts = tmp_path_factory.mktemp("real") / "prompts.jsonl"
    texts = ("Write a long story about a river, a bridge and a town.", "Say hello.")
    lines = [
        {"id": f"p{i}", "group": "all", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(texts)
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    shipped = find_deployment("cpu-smollm2")
    workload = shipped.workload.model_copy(update={"prompts": str(prompts), "max_tokens": 80})
    small = shipped.model_copy(update={"workload": workload})
    with Session(small, home_folder(), lambda text: None) as one:
        yield Court(one, small)
