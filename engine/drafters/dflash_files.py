"""A DFlash checkpoint on disk: config.json and model.safetensors in the public key and tensor names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from engine.drafters.dflash import DFlash, DFlashConfig
from engine.models.config import LlamaConfig
from space.errors import EngineError, nearest

TIED = "tied_markov"
_INTEGERS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_target_layers",
    "block_size",
)
_NUMBERS = ("rms_norm_eps", "rope_theta")
# Keys that say what this layout always is; a checkpoint that says otherwise is another format.
_FIXED: dict[str, object] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "is_causal": False,
    "dtype": "bfloat16",
}
_NESTED = ("target_layer_ids", "mask_token_id", "projector_type", "markov_rank")


def config_to_json(config: DFlashConfig) -> dict[str, object]:
    """The config.json of a drafter. `mask_token_id` is the first id past the vocabulary: the row is in the file."""
    nested: dict[str, object] = {
        "target_layer_ids": list(config.target_layer_ids),
        "mask_token_id": config.vocab_size,
    }
    if config.markov_rank:
        nested |= {"projector_type": TIED, "markov_rank": config.markov_rank}
    plain = {name: getattr(config, name) for name in _INTEGERS + _NUMBERS}
    if config.draft_vocab_size:
        plain["draft_vocab_size"] = config.draft_vocab_size
    return {**_FIXED, **plain, "dflash_config": nested}


def _number(values: Mapping[str, Any], name: str) -> float:
    if name not in values:
        raise EngineError(f"config.json lacks {name!r}; a DFlash drafter needs it")
    value = values[name]
    if type(value) not in (int, float) or value <= 0:
        raise EngineError(f"config.json: {name} is {value!r}; a positive number is needed")
    return float(value)


def _integer(values: Mapping[str, Any], name: str) -> int:
    value = _number(values, name)
    if not value.is_integer():
        raise EngineError(f"config.json: {name} is {value!r}; a whole number is needed")
    return int(value)


def _known(values: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for name in values:
        if name not in allowed:
            raise EngineError(f"{where}: unknown key {name!r}{nearest(name, allowed)}; known: {', '.join(allowed)}")


def config_from_json(values: Mapping[str, Any]) -> DFlashConfig:
    """Reads a config.json's content; EngineError names the key, its value and what is allowed."""
    _known(values, (*_FIXED, *_INTEGERS, *_NUMBERS, "draft_vocab_size", "dflash_config"), "config.json")
    for name, wanted in _FIXED.items():
        if values.get(name, wanted) != wanted:
            raise EngineError(f"config.json: {name} is {values[name]!r}; this loader reads {wanted!r} only")
    nested = values.get("dflash_config")
    if not isinstance(nested, dict):
        raise EngineError(f"config.json: dflash_config is {nested!r}; an object with {', '.join(_NESTED)} is needed")
    _known(nested, _NESTED, "config.json, dflash_config")
    projector = nested.get("projector_type")
    if projector not in (None, TIED):
        raise EngineError(f"config.json: projector_type {projector!r} is not known; allowed: {TIED!r} or none")
    ids = nested.get("target_layer_ids")
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise EngineError(f"config.json: target_layer_ids is {ids!r}; a list of layer numbers is needed")
    shape: dict[str, Any] = {name: _integer(values, name) for name in _INTEGERS}
    shape |= {name: _number(values, name) for name in _NUMBERS}
    if "draft_vocab_size" in values:
        shape["draft_vocab_size"] = _integer(values, "draft_vocab_size")
    rank = _integer(nested, "markov_rank") if projector else 0
    return DFlashConfig(**shape, target_layer_ids=tuple(ids), markov_rank=rank)


def save_drafter(model: DFlash, folder: Path) -> None:
    """Writes config.json and model.safetensors (bfloat16) into an existing folder."""
    text = json.dumps(config_to_json(model.config), indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    kept = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    tensors = {name: value.bfloat16() if value.is_floating_point() else value for name, value in kept.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_drafter(folder: Path) -> DFlash:
    """Reads a drafter in bfloat16 on the CPU; EngineError says in one line which file, key or tensor does not fit."""
    path, weights = folder / "config.json", folder / "model.safetensors"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise EngineError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise EngineError(f"{path} holds a {type(values).__name__}; an object is needed")
    config = config_from_json(values)
    try:
        tensors = load_file(weights)
    except OSError as error:
        raise EngineError(f"cannot read {weights}: {error.strerror}") from error
    except SafetensorError as error:
        raise EngineError(f"{weights} is damaged ({error}); fetch it again") from error
    with torch.device("meta"):
        model = DFlash(config).to(torch.bfloat16)
    _fit(model.state_dict(), tensors, weights)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def _fit(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], path: Path) -> None:
    missing = sorted(set(expected) - set(found))
    if missing:
        raise EngineError(f"{path} lacks tensor {missing[0]!r} ({len(missing)} missing); config.json asks for it")
    for name, tensor in found.items():
        if name not in expected:
            raise EngineError(f"{path}: unknown tensor {name!r}{nearest(name, expected)}")
        want = expected[name]
        if tensor.shape != want.shape or tensor.dtype != want.dtype:
            raise EngineError(
                f"{path}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}; "
                f"config.json asks for {want.dtype} {list(want.shape)}"
            )


def fitting_drafter(folder: Path, target: LlamaConfig) -> DFlash:
    """Loads a drafter and refuses it where it was made for another target."""
    model = load_drafter(folder)
    check_target(model.config, hidden_size=target.hidden, vocab_size=target.vocab, num_layers=target.layers)
    return model


def check_target(config: DFlashConfig, *, hidden_size: int, vocab_size: int, num_layers: int) -> None:
    """Refuses a drafter made for another target; EngineError names the key, what it is and what the target has."""
    pairs = (
        ("hidden_size", config.hidden_size, hidden_size),
        ("vocab_size", config.vocab_size, vocab_size),
        ("num_target_layers", config.num_target_layers, num_layers),
    )
    for name, drafter, target in pairs:
        if drafter != target:
            raise EngineError(f"the drafter does not fit the target: {name} is {drafter}, the target has {target}")
