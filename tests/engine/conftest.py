"""The tiny checkpoint, loaded once, and the path of the helper that writes it."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_checkpoint import write_tiny_checkpoint  # noqa: E402 - stands on the path from here on

from engine.loop import Decoder  # noqa: E402
from engine.weights.checkpoint import load_checkpoint  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """The tiny checkpoint's folder; tests that change a file write a folder of their own."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_model(tiny_folder):
    return load_checkpoint(tiny_folder)


@pytest.fixture
def decoder(tiny_model):
    return Decoder(tiny_model, 512)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield
