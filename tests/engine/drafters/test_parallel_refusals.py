"""A checkpoint of a parallel drafter that cannot work is refused in one line before anything runs."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.drafters.checkpoint import load_drafter_checkpoint
from engine.drafters.dflash2_files import read_dflash2_config
from engine.drafters.dflash_files import read_dflash_config
from engine.drafters.dflash_keys import Keys
from engine.drafters.dspark_files import read_dspark_config
from engine.models.llama import Llama
from space.errors import EngineError
from tests.engine.drafters import public_layouts as public

FORMATS: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
    "dflash": (public.DFLASH, public.body()),
    "dflash2": (public.DFLASH2, public.body() | public.dflash2_parts()),
    "dspark": (public.DSPARK, public.body() | public.own_tables() | public.dspark_heads()),
}
SLIDING = ["sliding_attention", "full_attention"]


@pytest.fixture(scope="module")
def target() -> Llama:
    return public.tables_only_target()


def refused(folder: Path, target: Llama, message: str) -> None:
    with pytest.raises(EngineError, match=message) as error:
        load_drafter_checkpoint(folder, target)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "config.json lacks 'hidden_size'"),
        ({"hidden_sise": 24}, "unknown key 'hidden_sise'; did you mean 'hidden_size'"),
        ({"intermediate_size": "40"}, "intermediate_size is '40'; a positive number"),
        ({"intermediate_size": 41}, r"'layers.0.mlp.down_proj.weight' is torch.bfloat16 \[24, 40\].*\[24, 41\]"),
        ({"model_type": "gemma4"}, "model_type is 'gemma4'; this loader reads 'qwen3' only"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this loader reads 'silu' only"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_scaling.rope_type is 'yarn'"),
        ({"rope_theta": None}, "lacks 'rope_theta'"),
        ({"rope_parameters": 3}, "rope_parameters is 3; an object"),
        ({"layer_types": ["full_attention"]}, "layer_types is .*2 times 'full_attention' or 'sliding_attention'"),
        ({"layer_types": SLIDING, "sliding_window": 4}, "use_sliding_window is False; but layer_types"),
        ({"layer_types": SLIDING, "use_sliding_window": True}, "lacks 'sliding_window'"),
        ({"use_sliding_window": "no"}, "use_sliding_window is 'no'; true or false"),
        ({"num_target_layers": 7}, "does not fit the target: num_target_layers is 7, the target has 9|rise strictly"),
        ({"vocab_size": 64}, "does not fit the target: vocab_size is 64, the target has 50"),
        ({"target_hidden_size": 48}, "does not fit the target: target_hidden_size is 48, the target has 24"),
        ({"draft_vocab_size": 60}, "draft_vocab_size 60 exceeds vocab_size 50"),
        ({"draft_vocab_size": 12}, "lacks tensor 'd2t'|'lm_head.weight' is .*50, 24.*12, 24"),
        ({"mask_token_id": -1, "dflash_config": {}}, "mask_token_id is -1; a number from 0|lacks"),
    ],
)
def test_config(tmp_path: Path, target: Llama, name: str, change: dict[str, Any], message: str) -> None:
    config, tensors = FORMATS[name]
    refused(public.write(tmp_path, config | change, tensors), target, message)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_layer_ids": [1, 8]}, r"target_layer_ids \[1, 8\] must rise strictly.*the last layer's output"),
        ({"target_layer_ids": [6, 1]}, "must rise strictly"),
        ({"target_layer_ids": [1, 6, 6]}, "must rise strictly"),
        ({"target_layer_ids": []}, "must rise strictly"),
        ({"target_layer_ids": "1,6"}, "target_layer_ids is '1,6'; a list of layer numbers"),
        ({"target_layer_ids": [1, 3, 6]}, r"'fc.weight' is torch.bfloat16 \[24, 48\].*\[24, 72\]"),
        ({"block_size": 1}, "block_size 1 must be at least 2"),
        ({"mask_token_id": 60}, "no row for the mask: mask_token_id 60"),
        ({"mask_token_id": None}, "no row for the mask"),
        ({"projector_type": "domino"}, "projector_type is 'domino'; allowed is none"),
        ({"attention_sink_bias": True}, "attention_sink_bias is True; this loader reads False only"),
        ({"use_swa": True}, "use_swa is True; this loader reads False only"),
        ({"shift_label": True}, "shift_label is True"),
        ({"selector_topk": 3}, "unknown key 'selector_topk'"),
        ({"output_multiplier": 0}, "output_multiplier is 0; a positive number"),
    ],
)
def test_format_keys(tmp_path: Path, target: Llama, name: str, change: dict[str, Any], message: str) -> None:
    config, tensors = FORMATS[name]
    flat = {key: value for key, value in config.items() if key not in change}
    inner = {key: value for key, value in config.get("dflash_config", {}).items() if key not in change}
    refused(public.write(tmp_path, flat | {"dflash_config": inner | change}, tensors), target, message)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dflash2", {"conv_group_size": 5}, "conv_group_size 5 must divide hidden_size 24"),
        ("dflash2", {"selector_rank": None}, "lacks 'selector_rank', in dflash_config or beside it"),
        ("dflash2", {"selector_rank": 7}, r"'candidate_selector.hidden_projection.weight' is .*\[6, 24\].*\[7, 24\]"),
        ("dspark", {"markov_head_type": "linear"}, "markov_head_type is 'linear'; allowed is 'vanilla' or 'gated'"),
        ("dspark", {"markov_head_type": "gated"}, "lacks tensor 'markov_head.gate_proj.bias' .2 missing"),
        ("dspark", {"markov_rank": 0}, "confidence_head_with_markov is True, but markov_rank is 0"),
        ("dspark", {"enable_confidence_head": False}, "unknown tensor 'confidence_head.proj"),
        ("dspark", {"enable_confidence_head": 1}, "enable_confidence_head is 1; true or false"),
    ],
)
def test_keys_of_the_heads(tmp_path: Path, target: Llama, name: str, change: dict[str, Any], message: str) -> None:
    config, tensors = FORMATS[name]
    config = public.nested(config, **change) if "dflash_config" in config else config | change
    refused(public.write(tmp_path, config, tensors), target, message)


@pytest.mark.parametrize("name", FORMATS)
def test_tensors(tmp_path: Path, target: Llama, name: str) -> None:
    config, tensors = FORMATS[name]
    for missing in (
        "fc.weight",
        "layers.1.self_attn.k_norm.weight",
        *(n for n in tensors if "head.m" in n or "_conv" in n),
    ):
        rest = {n: t for n, t in tensors.items() if n != missing}
        refused(public.write(tmp_path, config, rest), target, f"lacks tensor '{missing}' .1 missing")
    hidden = tensors | {"mask_hidden": torch.zeros(24)}
    refused(
        public.write(tmp_path, config, hidden), target, "unknown tensor 'mask_hidden'; did you mean 'mask_embedding'"
    )
    short = tensors | {"norm.weight": torch.ones(23)}
    refused(public.write(tmp_path, config, short), target, r"'norm.weight' is torch.float32 \[23\].*bfloat16 \[24\]")
    quantised = tensors | {"fc.weight": torch.zeros(24, 48).to(torch.float8_e4m3fn)}
    refused(public.write(tmp_path, config, quantised), target, "'fc.weight' is torch.float8_e4m3fn")
    twice = tensors | {"encoder.fc.weight": tensors["fc.weight"].clone()}
    refused(public.write(tmp_path, config, twice), target, "holds 'fc.weight' twice")
    table = tensors | {"embed_tokens.weight": torch.zeros(49, 24)}
    refused(public.write(tmp_path, config, table), target, r"'embed_tokens.weight' is .*\[49, 24\].*\[50, 24\]")


@pytest.mark.parametrize("name", FORMATS)
def test_files(tmp_path: Path, target: Llama, name: str) -> None:
    folder = public.write(tmp_path, *FORMATS[name])
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    refused(folder, target, "model.safetensors is damaged")
    weights.write_bytes(whole[:5])
    refused(folder, target, "model.safetensors is damaged")
    weights.unlink()
    refused(folder, target, "cannot read .*model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": "part.safetensors"}}))
    refused(folder, target, "cannot read .*part.safetensors")


def test_architectures(tmp_path: Path, target: Llama) -> None:
    config, tensors = FORMATS["dflash"]
    for names, message in (
        (["DFlash3DraftModel"], "architectures is .*did you mean 'DFlash"),
        (["Gemma4DSparkModel"], "architectures is .*did you mean 'Qwen3DSparkModel'"),
        (None, "architectures is None"),
    ):
        refused(public.write(tmp_path, config | {"architectures": names}, tensors), target, message)


def test_draft_ids_must_be_tokens(tmp_path: Path, target: Llama) -> None:
    config, tensors = public.DFLASH | {"draft_vocab_size": 3}, public.body()
    folder = public.write(tmp_path, config, tensors | {"d2t": torch.tensor([0, 5, 48])})
    refused(folder, target, r"d2t maps draft token 2 to 50; the target has tokens 0..49")
    public.write(tmp_path, config, tensors | {"d2t": torch.zeros(3)})
    refused(folder, target, "'d2t' is torch.float32")
    public.write(tmp_path, public.DFLASH, tensors | {"d2t": torch.zeros(3).long()})
    refused(folder, target, "unknown tensor 'd2t'")


def test_another_width_needs_tables(tmp_path: Path) -> None:
    target = public.tables_only_target(hidden=16)
    config, tensors = public.DFLASH | {"target_hidden_size": 16}, public.body(tap_size=16)
    refused(
        public.write(tmp_path, config, tensors),
        target,
        "lacks tensor 'embed_tokens.weight': its hidden_size is 24.*rows have 16",
    )
    only_input = tensors | {"embed_tokens.weight": public.own_tables()["embed_tokens.weight"]}
    refused(public.write(tmp_path, config, only_input), target, "lacks tensor 'lm_head.weight': its hidden_size is 24")


def test_side_file(tmp_path: Path, target: Llama) -> None:
    folder = public.write(tmp_path, *FORMATS["dflash"])
    side = folder / "mask_embedding.pt"
    for content, message in (
        ({"embedding": torch.zeros(23), "mask_token_id": public.MASK}, "a row of 24 numbers"),
        ({"embedding": torch.zeros(24), "mask_token_id": 3}, "is for mask_token_id 3, config.json says 47"),
        ([1], "must hold an object"),
    ):
        torch.save(content, side)
        refused(folder, target, message)
    side.write_bytes(b"nothing")
    refused(folder, target, "cannot read .*mask_embedding.pt")


ODD = [None, "x", -1, 0, 1.5, True, [], {}, [[1], [2]], [None], {"a": 1}, float("nan"), float("inf"), 2**70]
OPTIONAL = ["draft_vocab_size", "target_hidden_size", "is_causal", "causal", "layer_ids", "rope_parameters"]
OPTIONAL += ["input_embedding_scale", "final_logit_softcapping", "logit_scale", "projector_type", "sample_from_anchor"]
READERS = {"dflash": read_dflash_config, "dflash2": read_dflash2_config, "dspark": read_dspark_config}


def read_or_refusal(name: str, values: dict[str, Any]) -> dict[str, Any] | str:
    try:
        keys = Keys(values, "config.json")
        config = READERS[name](keys, public.DEPTH)
        keys.finish()
    except EngineError as error:
        return str(error)
    return asdict(config)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_odd_value_is_read_or_refused(name: str, odd: object) -> None:
    """Whatever a key holds, the answer is a config of finite numbers or one line."""
    config = FORMATS[name][0]
    inner = config.get("dflash_config", {})
    changed = [config | {key: odd} for key in [*config, *OPTIONAL]]
    changed += [config | {"dflash_config": inner | {key: odd}} for key in [*inner, *OPTIONAL]]
    answers = [read_or_refusal(name, values) for values in changed]
    refusals = [answer for answer in answers if isinstance(answer, str)]
    assert refusals
    assert not any("\n" in refusal for refusal in refusals)
    read = [answer for answer in answers if isinstance(answer, dict)]
    assert all(math.isfinite(value) for shape in read for value in shape.values() if isinstance(value, float))
