"""Checkpoint folders that cannot be used: one clear line each."""

import json

import pytest
import torch
from engine_helpers import write_variant
from safetensors.torch import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint

from engine.models.config import read_config
from engine.weights.checkpoint import load_checkpoint
from space.errors import EngineError


@pytest.fixture
def folder(tmp_path):
    return write_tiny_checkpoint(tmp_path / "model")


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path)


def assert_refused(folder, message):
    with pytest.raises(EngineError, match=message) as caught:
        load_checkpoint(folder)
    assert len(str(caught.value).splitlines()) == 1
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "config.json: hidden_size: field required"),
        ({"model_type": ...}, "config.json: model_type: field required"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: input should be greater than 0"),
        ({"vocab_size": "many"}, "vocab_size: input should be a valid integer"),
        ({"model_type": "qwen2"}, "model_type 'qwen2': this engine runs 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu': this engine runs 'silu'"),
        ({"attention_bias": True}, "attention_bias or mlp_bias is true: this engine runs models without biases"),
        ({"mlp_bias": True}, "attention_bias or mlp_bias is true"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_type 'llama3': this engine runs 'default'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear': this engine runs 'default'"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, "rope_scaling": {"type": "yarn"}},
            "rope_type 'yarn'",
        ),
    ],
)
def test_a_config_that_cannot_be_run(folder, changes, message):
    change_config(folder, **changes)
    assert_refused(folder, message)


@pytest.mark.parametrize("content", ["{", "", b"\xff\xfe{}", "[]"])
def test_a_config_that_is_none(folder, content):
    path = folder / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(folder, "config.json")


def test_no_config(folder):
    (folder / "config.json").unlink()
    assert_refused(folder, "cannot read .*config.json: No such file")


def test_a_config_is_read_whole(folder):
    config = read_config(folder)
    assert (config.hidden, config.layers, config.heads, config.kv_heads, config.head_dim) == (64, 2, 4, 2, 16)
    assert (config.ffn, config.vocab, config.rope_theta, config.norm_eps) == (160, 258, 10000.0, 1e-5)
    assert (config.tied, config.max_position, config.stop_ids) == (True, 1024, (257,))


@pytest.mark.parametrize(
    ("changes", "attribute", "value"),
    [
        ({"eos_token_id": [5, 6]}, "stop_ids", (5, 6)),
        ({"eos_token_id": ...}, "stop_ids", ()),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "rope_theta", 5e5),
        ({"head_dim": ...}, "head_dim", 16),
        ({"num_key_value_heads": ...}, "kv_heads", 4),
    ],
)
def test_a_config_in_its_other_spellings(folder, changes, attribute, value):
    change_config(folder, **changes)
    assert getattr(read_config(folder), attribute) == value


def test_a_missing_tensor(folder):
    change_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert_refused(folder, "tensor model.layers.1.mlp.up_proj.weight is missing")


def test_a_missing_head(folder):
    change_config(folder, tie_word_embeddings=False)
    assert_refused(folder, "tensor lm_head.weight is missing")


def test_a_wrong_shape(folder):
    change_config(folder, intermediate_size=128)
    assert_refused(folder, r"mlp.gate_proj.weight has shape \(160, 64\), expected \(128, 64\)")


def test_a_quantised_tensor(folder):
    name = "model.layers.0.mlp.down_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    assert_refused(folder, f"tensor {name} is torch.float8_e4m3fn, expected bfloat16, float16 or float32")


@pytest.mark.parametrize("kept", [0, 4, 300, -1])
def test_a_truncated_model_file(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert_refused(folder, "cannot read model file .*model.safetensors")


def test_no_model_file(folder):
    (folder / "model.safetensors").unlink()
    assert_refused(folder, "cannot read model file .*model.safetensors")


def test_a_missing_shard(tmp_path):
    folder = write_variant(tmp_path / "model", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert_refused(folder, "cannot read model file .*model-00002-of-00002.safetensors")


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": [1]}'])
def test_a_broken_index(tmp_path, content):
    folder = write_variant(tmp_path / "model", shards=2)
    (folder / "model.safetensors.index.json").write_text(content)
    assert_refused(folder, "index.json is no index of model files")
