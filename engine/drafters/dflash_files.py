"""A DFlash checkpoint on disk: config.json and model.safetensors in the public key and tensor names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.drafters.dflash import DFlash, DFlashConfig
from engine.drafters.dflash_keys import Keys
from engine.drafters.dflash_shape import read_shape
from engine.drafters.dflash_tensors import fill
from engine.formats import read_config
from space.errors import EngineError

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
_FIXED: dict[str, object] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "is_causal": False,
    "dtype": "bfloat16",
}


def config_to_json(config: DFlashConfig) -> dict[str, object]:
    """The config.json of a drafter. `mask_token_id` is the first id past the vocabulary: the row is in the file.

    Raises:
        EngineError: the drafter has something that training here does not make, such as windows.
    """
    nested: dict[str, object] = {
        "target_layer_ids": list(config.target_layer_ids),
        "mask_token_id": config.vocab_size,
    }
    if config.markov_rank:
        nested |= {"projector_type": TIED, "markov_rank": config.markov_rank}
    plain = {name: getattr(config, name) for name in _INTEGERS + _NUMBERS}
    if config.draft_vocab_size:
        plain["draft_vocab_size"] = config.draft_vocab_size
    values = {**_FIXED, **plain, "dflash_config": nested}
    if config_from_json(values) != config:
        raise EngineError("this drafter has options that are read from public files but not written here")
    return values


def read_dflash_config(keys: Keys, target_layers: int | None) -> DFlashConfig:
    """Reads a DFlash config; EngineError names the key, its value and what is allowed."""
    projector = keys.choice("projector_type", (None, TIED, "dflash"), nested=True)
    rank = keys.integer("markov_rank", nested=True) if projector == TIED else 0
    shape = read_shape(keys, target_layers, sliding_is_causal=True, from_anchor=False)
    return DFlashConfig(**shape, markov_rank=rank)


def config_from_json(values: Mapping[str, Any], where: str = "config.json") -> DFlashConfig:
    """Reads the content of a config.json that stands for itself."""
    keys = Keys(values, where)
    config = read_dflash_config(keys, None)
    keys.finish()
    return config


def save_drafter(model: DFlash, folder: Path) -> None:
    """Writes config.json and model.safetensors (bfloat16) into an existing folder."""
    text = json.dumps(config_to_json(model.config), indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    kept = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    tensors = {name: value.bfloat16() if value.is_floating_point() else value for name, value in kept.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_drafter(folder: Path) -> DFlash:
    """Reads a drafter that was trained here, in bfloat16 on the CPU, without its target.

    EngineError says in one line which file, key or tensor does not fit.
    """
    values = read_config(folder)
    if values.get("architectures") != _FIXED["architectures"]:
        raise EngineError(f"{folder / 'config.json'}: architectures is {values.get('architectures')!r}; this is DFlash")
    with torch.device("meta"):
        model = DFlash(config_from_json(values, str(folder / "config.json"))).to(torch.bfloat16)
    fill(model, folder, None)
    return model.eval()


def check_target(config: DFlashConfig, *, hidden_size: int, vocab_size: int, num_layers: int) -> None:
    """Refuses a drafter made for another target; EngineError names the key, what it is and what the target has."""
    tap = "target_hidden_size" if config.target_hidden_size else "hidden_size"
    pairs = (
        (tap, config.tap_size, hidden_size),
        ("vocab_size", config.vocab_size, vocab_size),
        ("num_target_layers", config.num_target_layers, num_layers),
    )
    for name, drafter, target in pairs:
        if drafter != target:
            raise EngineError(f"the drafter does not fit the target: {name} is {drafter}, the target has {target}")
