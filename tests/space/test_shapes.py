"""Model shapes: counted parameters against the sizes that the models are published with."""

import json
import math
from pathlib import Path

import pytest
from safetensors import safe_open

from space.errors import InputError
from space.shapes import DRAFTERS, MODELS, find_drafter, find_model

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.1-8b", 8.03), ("qwen3-8b", 8.19), ("qwen3-4b", 4.02), ("smollm2-135m", 0.1345), ("smollm2-8b", 8.03)],
)
def test_counted_parameters_are_the_published_ones(name, billions):
    assert find_model(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_bytes_of_a_step_are_the_measured_anchors():
    llama = find_model("llama-3.1-8b")
    assert 2 * (llama.body_parameters + llama.head_parameters) == pytest.approx(15.0e9, rel=1e-3)
    assert llama.kv_bytes_per_token == 128 * 1024


def test_the_widened_model_has_the_bytes_of_its_model():
    wide, llama = find_model("smollm2-8b"), find_model("llama-3.1-8b")
    assert wide.parameters == llama.parameters
    assert wide.kv_bytes_per_token == llama.kv_bytes_per_token


def test_a_hybrid_keeps_states_instead_of_most_keys():
    hybrid, dense = find_model("qwen3.5-9b"), find_model("qwen3-8b")
    assert hybrid.attention_layers == 8
    assert hybrid.kv_bytes_per_token == 8 * 2 * 4 * 256 * 2
    assert hybrid.state_bytes == 24 * 32 * 128 * 128 * 4
    assert dense.state_bytes == 0
    assert hybrid.parameters == pytest.approx(8.95e9, rel=0.01)


def test_the_public_llama_drafter_has_the_size_of_its_file():
    assert 2 * find_drafter("dflash-llama-3.1-8b").parameters / 2**30 == pytest.approx(1.95, abs=0.005)


def test_the_bundled_drafter_is_counted_from_its_checkpoint():
    folder = ROOT / "engine" / "drafters" / "bundled" / "smollm2-135m-dflash"
    with safe_open(folder / "model.safetensors", "pt") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 - not a dict
    matrices = sum(math.prod(size) for size in sizes if len(size) > 1)
    shape = find_drafter("dflash-smollm2-135m")
    assert shape.parameters == matrices
    assert shape.block == json.loads((folder / "config.json").read_text(encoding="utf-8"))["block_size"]


def test_names_are_keys_and_the_nearest_is_offered():
    assert all(name == shape.name for shapes in (MODELS, DRAFTERS) for name, shape in shapes.items())
    with pytest.raises(InputError, match="unknown model shape 'llama-8b'; did you mean"):
        find_model("llama-8b")
    with pytest.raises(InputError, match="unknown drafter shape 'zzz'"):
        find_drafter("zzz")
