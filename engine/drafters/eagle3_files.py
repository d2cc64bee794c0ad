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

from engine.drafters.eagle3 import Eagle3, Eagle3Config
from engine.models.config import LlamaConfig
from space.errors import EngineError, nearest

DEEPSPEC = "Qwen3Eagle3Model"
_OURS = (
    "architectures hidden_size target_hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim vocab_size draft_vocab_size rms_norm_eps rope_theta rope_parameters rope_scaling "
    "hidden_act attention_bias mlp_bias eagle_config eagle_aux_hidden_state_layer_ids target_layer_ids "
    "num_target_layers norm_before_residual norm_before_fc fc_norm norm_output use_sliding_window sliding_window "
    "model_type speculators_model_type transformer_layer_config use_aux_hidden_state"
)
# Keys that public files carry and that change nothing here: training, serving, and other libraries' bookkeeping.
_IDLE = (
    "_name_or_path attention_dropout auto_map block_size bos_token_id dtype embed_requires_grad enable_sp_ulysses "
    "eos_token_id initializer_range is_decoder layer_types max_position_embeddings max_window_layers modal_type "
    "num_aux_hidden_states pad_token_id pretraining_tp speculators_config speculators_version target_model_type "
    "tie_word_embeddings torch_dtype transformers_version ttt_length use_cache"
)
_UNREAD_TENSORS = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")


class _Values:
    """The keys of a config.json, taken by name with their type; EngineError names file, key and value."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = values

    def fail(self, text: str) -> EngineError:
        return EngineError(f"{self._path}: {text}")

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._values.get(name)
        value = default if value is None else value
        if value is None:
            raise self.fail(f"lacks {name!r}; an EAGLE-3 drafter needs it")
        if type(value) not in (int, float) or value <= 0:
            raise self.fail(f"{name} is {value!r}; a positive number is needed")
        return float(value)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value != int(value):
            raise self.fail(f"{name} is {value}; a whole number is needed")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        value = default if value is None else value
        if type(value) is not bool:
            raise self.fail(f"{name} is {value!r}; true or false is needed")
        return value

    def table(self, name: str) -> Mapping[str, Any]:
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.fail(f"{name} is {value!r}; an object is needed")
        return value or {}

    def nested(self, name: str) -> "_Values":
        return _Values(self._path, self.table(name))


def _flattened(path: Path, values: Mapping[str, Any]) -> _Values:
    """One level of keys: speculators and EAGLE put some into objects of their own; a nested key goes first."""
    outer = _Values(path, values)
    flat = {**outer.table("transformer_layer_config"), **values, **outer.table("eagle_config")}
    for inner in ("transformer_layer_config", "eagle_config"):
        flat.pop(inner, None)
    known = [*_OURS.split(), *_IDLE.split()]
    for name in flat:
        if name not in known:
            raise outer.fail(f"unknown key {name!r}{nearest(name, known)}")
    return _Values(path, flat)


def _refuse_foreign(values: _Values) -> None:
    """What this drafter cannot do is named, not passed over."""
    ropes = (values.table("rope_scaling"), values.table("rope_parameters"))
    kinds = [kind for rope in ropes if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default"]
    window = values.raw("sliding_window") if values.flag("use_sliding_window") else None
    for name, value, only in (
        ("hidden_act", values.raw("hidden_act") or "silu", "silu"),
        ("attention_bias", values.flag("attention_bias"), False),
        ("mlp_bias", values.flag("mlp_bias"), False),
        ("use_aux_hidden_state", values.flag("use_aux_hidden_state", True), True),
        ("rope_type", kinds[0] if kinds else "default", "default"),
        ("sliding_window", window, None),
    ):
        if value != only:
            raise values.fail(f"{name} is {value!r}; this engine runs EAGLE-3 drafters with {only!r} only")


def _target_layers(values: _Values, deepspec: bool, layers: int) -> tuple[int, ...]:
    """The tapped layers by their OUTPUT, whatever the file counts by."""
    name = "target_layer_ids" if deepspec else "eagle_aux_hidden_state_layer_ids"
    given = values.raw(name)
    if given is None and deepspec:
        raise values.fail(f"lacks {name!r}; an EAGLE-3 drafter of this flavour needs it")
    ids = [2, layers // 2, layers - 3] if given is None else given
    lowest, highest = (0, layers - 2) if deepspec else (1, layers - 1)
    good = isinstance(ids, list) and ids and all(type(i) is int and lowest <= i <= highest for i in ids)
    if not good or ids != sorted(set(ids)):
        what = "outputs" if deepspec else "inputs"
        origin = "" if given is not None else " (the default for a file without the key)"
        raise values.fail(
            f"{name} is {ids!r}{origin}; layers whose {what} a target of {layers} layers can be tapped for rise "
            f"strictly within {lowest}..{highest}"
        )
    return tuple(ids) if deepspec else tuple(i - 1 for i in ids)


def read_eagle3_config(
    path: Path, raw: Mapping[str, Any], target: LlamaConfig, tensors: Mapping[str, Tensor]
) -> Eagle3Config:
    """What config.json says, and which of the optional tensors the file has.

    `norm_output` has two meanings. Where the file speaks of `fc_norm` or `speculators_model_type` (EAGLE 3.1, vLLM,
    speculators), the head always reads the normalised output, and true means that the next step reads it too. In any
    other file (SpecForge) false means that the head reads the output as it is. Absent, both agree.
    """
    values = _flattened(path, raw)
    _refuse_foreign(values)
    deepspec = raw["architectures"][0] == DEEPSPEC
    vocab, hidden, heads = values.count("vocab_size"), values.count("hidden_size"), values.count("num_attention_heads")
    target_hidden = values.count("target_hidden_size", hidden)
    for name, found, expected in (
        ("vocab_size", vocab, target.vocab),
        ("target_hidden_size" if values.has("target_hidden_size") else "hidden_size", target_hidden, target.hidden),
        ("num_target_layers", values.count("num_target_layers", target.layers), target.layers),
    ):
        if found != expected:
            raise values.fail(f"the drafter does not fit the target: {name} is {found}, the target has {expected}")
    normed = values.flag("norm_output", True)
    newer = values.has("fc_norm") or values.has("speculators_model_type")
    config = Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        intermediate_size=values.count("intermediate_size"),
        num_hidden_layers=values.count("num_hidden_layers", 1),
        num_attention_heads=heads,
        num_key_value_heads=values.count("num_key_value_heads", heads),
        head_dim=values.count("head_dim", hidden // heads),
        vocab_size=vocab,
        draft_vocab_size=values.count("draft_vocab_size", vocab),
        target_layers=_target_layers(values, deepspec, target.layers),
        rms_norm_eps=values.number("rms_norm_eps", 1e-6),
        rope_theta=_theta(values),
        qk_norm=deepspec,
        norm_before_residual=values.flag("norm_before_residual"),
        norm_before_fc=values.flag("norm_before_fc"),
        fc_norm=values.flag("fc_norm"),
        norm_before_head=newer or normed,
        norm_fed_back=newer and values.flag("norm_output"),
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        mapped="d2t" in tensors,
    )
    _check(values, config)
    return config


def _theta(values: _Values) -> float:
    inner = values.nested("rope_parameters")
    return inner.number("rope_theta") if inner.has("rope_theta") else values.number("rope_theta", 10000.0)


def _check(values: _Values, config: Eagle3Config) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise values.fail(
            f"num_attention_heads {config.num_attention_heads} must be a multiple of num_key_value_heads "
            f"{config.num_key_value_heads}"
        )
    if config.draft_vocab_size > config.vocab_size:
        raise values.fail(f"draft_vocab_size {config.draft_vocab_size} is above vocab_size {config.vocab_size}")
    whole, same = config.draft_vocab_size == config.vocab_size, config.hidden_size == config.target_hidden_size
    for name, there, needed in (
        ("d2t", config.mapped, not whole),
        ("lm_head.weight", config.own_head, not (whole and same)),
        ("embed_tokens.weight", config.own_embedding, not same),
    ):
        if needed and not there:
            raise values.fail(f"asks for tensor {name!r}, which the weights lack; the target has nothing in its place")


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
        want = expected[name]
        if tensor.shape != want.shape or tensor.is_floating_point() != want.is_floating_point():
            raise EngineError(
                f"{path}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}; "
                f"config.json asks for {'a float type' if want.is_floating_point() else want.dtype} {list(want.shape)}"
            )


def _check_map(d2t: Tensor, config: Eagle3Config, path: Path) -> None:
    ids = torch.arange(config.draft_vocab_size) + d2t
    strange = ids[(ids < 0) | (ids >= config.vocab_size)]
    if len(strange):
        raise EngineError(
            f"{path}: d2t maps to token {int(strange[0])}; the vocabulary has 0..{config.vocab_size - 1} "
            "(d2t holds offsets: target id = draft id + d2t[draft id])"
        )
