"""Engine helpers of the tests tree, by name, and the tiny model."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "engine"))

from engine.weights.checkpoint import load_checkpoint  # noqa: E402 - stands on the path from here on


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tiny_checkpoint):
    return load_checkpoint(tiny_checkpoint)
