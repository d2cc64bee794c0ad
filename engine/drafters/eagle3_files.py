"""EAGLE-3 checkpoints on disk: what the public config.json variants mean, and tensors by their public names.

Two families write them. The Llama flavour (SafeAILab, SpecForge, speculators, vLLM's own flattened form) numbers taps
by the layer whose INPUT is read; DeepSpec's Qwen3 flavour by the layer whose OUTPUT is read, as DFlash does. Which one
a file is shows in `architectures`.
"""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from engine.drafters.dflash_keys import Keys
from engine.drafters.eagle3 import Eagle3, Eagle3Config
from engine.models.config import LlamaConfig
from space.errors import EngineError, nearest

DEEPSPEC = "Qwen3Eagle3Model"
_IDLE = (
    "block_size embed_requires_grad enable_sp_ulysses layer_types max_window_layers modal_type model_type "
    "num_aux_hidden_states pretraining_tp speculators_config speculators_version target_model_type ttt_length"
)
"""Keys that public files carry and that change nothing here: training, serving, other libraries' bookkeeping."""
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_UNREAD_TENSORS = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")


def _flattened(path: Path, raw: Mapping[str, Any]) -> Keys:
    """One level of keys: speculators and EAGLE put some into objects of their own."""
    flat = dict(raw)
    for inner in ("transformer_layer_config", "eagle_config"):
        found = flat.pop(inner, None)
        if found is not None and not isinstance(found, dict):
            raise EngineError(f"{path}: {inner} is {found!r}; an object is needed")
        flat = {**(found or {}), **flat}
    keys = Keys(flat, str(path))
    for name in _IDLE.split():
        keys.raw(name)
    return keys


def _refuse_foreign(keys: Keys) -> None:
    """What this drafter cannot do is named, not passed over."""
    keys.fixed({"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_aux_hidden_state": True})
    window = keys.raw("sliding_window")
    if keys.flag("use_sliding_window", False) and window is not None:
        raise keys.error("sliding_window", window, "this loader reads EAGLE-3 drafters without a window only")
    for name in ("rope_scaling", "rope_parameters"):
        rope = keys.raw(name) or {}
        kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
        if kind != "default":
            raise keys.error("rope_type", kind, "this loader reads 'default' only")


def _theta(keys: Keys) -> float:
    rope = keys.raw("rope_parameters") or {}
    inner = Keys(rope, "rope_parameters").raw("rope_theta")
    outer = keys.number("rope_theta", 10000.0)
    return outer if inner is None else Keys(rope, "rope_parameters").number("rope_theta")


def _target_layers(keys: Keys, deepspec: bool, layers: int) -> tuple[int, ...]:
    """The tapped layers by their OUTPUT, whatever the file counts by; -1 is the embedding's."""
    name = "target_layer_ids" if deepspec else "eagle_aux_hidden_state_layer_ids"
    given = keys.layers(name)
    if given is None and deepspec:
        keys.need(name)
    ids = (2, layers // 2, layers - 3) if given is None else given
    highest = layers - 2 if deepspec else layers - 1  # the last layer's output is never tapped
    if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] > highest:
        origin = " (the default for a file without the key)" if given is None else ""
        wanted = f"{'outputs' if deepspec else 'inputs'} of a target of {layers} layers rise strictly within"
        raise keys.error(name, list(ids), f"{wanted} 0..{highest}{origin}")
    return ids if deepspec else tuple(i - 1 for i in ids)


def read_eagle3_config(
    path: Path, raw: Mapping[str, Any], target: LlamaConfig, tensors: Mapping[str, Tensor]
) -> Eagle3Config:
    """What config.json says, and which of the optional tensors the file has.

    `norm_output` has two meanings. Where the file speaks of `fc_norm` or `speculators_model_type` (EAGLE 3.1, vLLM,
    speculators), the head always reads the normalised output, and true means that the next step reads it too. In any
    other file (SpecForge) false means that the head reads the output as it is. Absent, both agree.
    """
    keys = _flattened(path, raw)
    _refuse_foreign(keys)
    deepspec = keys.raw("architectures")[0] == DEEPSPEC
    vocab, hidden, heads = keys.integer("vocab_size"), keys.integer("hidden_size"), keys.integer("num_attention_heads")
    target_hidden = keys.integer("target_hidden_size", hidden)
    _check_target(keys, target, vocab, target_hidden)
    newer = any(keys.raw(name) is not None for name in ("fc_norm", "speculators_model_type"))
    normed = keys.flag("norm_output", None)
    config = Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        intermediate_size=keys.integer("intermediate_size"),
        num_hidden_layers=keys.integer("num_hidden_layers", 1),
        num_attention_heads=heads,
        num_key_value_heads=keys.integer("num_key_value_heads", heads),
        head_dim=keys.integer("head_dim", hidden // heads),
        vocab_size=vocab,
        draft_vocab_size=keys.integer("draft_vocab_size", vocab),
        target_layers=_target_layers(keys, deepspec, target.layers),
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope_theta=_theta(keys),
        qk_norm=deepspec,
        norm_before_residual=bool(keys.flag("norm_before_residual", False)),
        norm_before_fc=bool(keys.flag("norm_before_fc", False)),
        fc_norm=bool(keys.flag("fc_norm", False)),
        norm_before_head=newer or normed is not False,
        norm_fed_back=newer and normed is True,
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        mapped="d2t" in tensors,
    )
    keys.finish()
    _check(path, config)
    return config


def _check_target(keys: Keys, target: LlamaConfig, vocab: int, hidden: int) -> None:
    for name, found, expected in (
        ("vocab_size", vocab, target.vocab),
        ("target_hidden_size" if keys.raw("target_hidden_size") else "hidden_size", hidden, target.hidden),
        ("num_target_layers", keys.integer("num_target_layers", target.layers), target.layers),
    ):
        if found != expected:
            raise keys.error(name, found, f"the drafter does not fit the target, which has {expected}")


def _check(path: Path, config: Eagle3Config) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise EngineError(
            f"{path}: num_attention_heads {config.num_attention_heads} must be a multiple of num_key_value_heads "
            f"{config.num_key_value_heads}"
        )
    if config.draft_vocab_size > config.vocab_size:
        raise EngineError(f"{path}: draft_vocab_size {config.draft_vocab_size} is above vocab_size {config.vocab_size}")
    whole, same = config.draft_vocab_size == config.vocab_size, config.hidden_size == config.target_hidden_size
    for name, there, needed in (
        ("d2t", config.mapped, not whole),
        ("lm_head.weight", config.own_head, not (whole and same)),
        ("embed_tokens.weight", config.own_embedding, not same),
    ):
        if needed and not there:
            raise EngineError(
                f"{path} asks for tensor {name!r}, which the weights lack; the target has nothing in its place"
            )


def _read(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """All tensors of model.safetensors, or of pytorch_model.bin where there is no such file (tensors only)."""
    path, older = folder / "model.safetensors", folder / "pytorch_model.bin"
    path = older if older.exists() and not path.exists() else path
    try:
        found = load_file(path) if path != older else torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError) as error:
        first = str(error).partition("\n")[0]
        raise EngineError(f"{path} is damaged ({first}); fetch it again") from error
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise EngineError(f"{path} holds no tensors by name")
    return path, {_plain(name): tensor for name, tensor in found.items()}


def _plain(name: str) -> str:
    name = name.removeprefix("model.")
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def load_eagle3_model(folder: Path, values: Mapping[str, Any], target: LlamaConfig) -> Eagle3:
    """Loads a drafter in bfloat16 for `target`; EngineError says in one line which file, key or tensor does not fit."""
    path, tensors = _read(folder)
    for name in _UNREAD_TENSORS:
        tensors.pop(name, None)
    config = read_eagle3_config(folder / "config.json", values, target, tensors)
    with torch.device("meta"):
        model = Eagle3(config)
    _fit(model.state_dict(), tensors, path)
    model.load_state_dict({n: t if n == "d2t" else t.to(torch.bfloat16) for n, t in tensors.items()}, assign=True)
    if config.mapped:
        _check_map(tensors["d2t"], config, path)
    return model.eval()


def _fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    missing = sorted(set(expected) - set(found))
    if missing:
        raise EngineError(f"{path} lacks tensor {missing[0]!r} ({len(missing)} missing); config.json asks for it")
    for name, tensor in found.items():
        if name not in expected:
            raise EngineError(f"{path}: unknown tensor {name!r}{nearest(name, expected)}")
        allowed = _FLOATS if expected[name].is_floating_point() else (torch.int64,)
        if tensor.shape != expected[name].shape or tensor.dtype not in allowed:
            raise EngineError(
                f"{path}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}; config.json asks for "
                f"{' or '.join(map(str, allowed))} {list(expected[name].shape)}"
            )


def _check_map(d2t: Tensor, config: Eagle3Config, path: Path) -> None:
    ids = torch.arange(config.draft_vocab_size) + d2t
    strange = ids[(ids < 0) | (ids >= config.vocab_size)]
    if len(strange):
        raise EngineError(
            f"{path}: d2t maps to token {int(strange[0])}; the vocabulary has 0..{config.vocab_size - 1} "
            "(d2t holds offsets: target id = draft id + d2t[draft id])"
        )
