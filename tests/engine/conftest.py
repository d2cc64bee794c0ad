"""The tiny checkpoint, loaded once, and the path of the helper that writes it."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_checkpoint import write_tiny_checkpoint  # noqa: E402 - stands on the path from here on

from engine.drafters.dflash import DFlash, DFlashConfig  # noqa: E402
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


@pytest.fixture(scope="session")
def tiny_dflash(tiny_model):
    """A DFlash drafter of random weights that fits the tiny model."""
    target = tiny_model.config
    config = DFlashConfig(
        hidden_size=target.hidden,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=target.vocab,
        num_target_layers=target.layers,
        target_layer_ids=(0,),
        block_size=5,
        markov_rank=8,
    )
    torch.manual_seed(0)
    return DFlash(config).to(torch.bfloat16).eval()


@pytest.fixture
def decoder(tiny_model):
    return Decoder(tiny_model, 512)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield
