"""Reads a target from disk: a GGUF file (dequantised once to bfloat16) or a folder in Hugging Face layout."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine.drafters.train.target import Target, TargetConfig
from space.errors import EngineError

_GGUF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL = 3  # GGUF's token type of special tokens
_MARK = "\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A target's tokenizer and what its chat template puts before and after a lone user turn."""

    tokenizer: Tokenizer
    before: str
    after: str
    stop: int

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in which special tokens are spelled out."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, turn: str) -> list[int]:
        """Token ids of a user turn up to where the assistant's answer starts."""
        return self.encode(self.before + turn + self.after)


def make_chat(tokenizer: Tokenizer, template: str, stop: int) -> Chat:
    """Splits a Jinja chat template around a lone user turn."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    messages = [{"role": "user", "content": _MARK}]
    text = environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    if text.count(_MARK) != 1:
        raise EngineError("the target's chat template does not print the user turn exactly once")
    before, after = text.split(_MARK)
    return Chat(tokenizer=tokenizer, before=before, after=after, stop=stop)


def load_target(path: Path, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> tuple[Target, Chat]:
    """Loads a target, converted once to `dtype`, and its chat; EngineError says what does not fit."""
    if path.is_dir():
        return _load_folder(path, device, dtype)
    if not path.is_file():
        raise EngineError(f"target {path} does not exist; give a .gguf file or a folder with config.json")
    try:
        reader = GGUFReader(path)
    except ValueError as error:
        raise EngineError(f"target {path} is not a GGUF file: {error}") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise EngineError(f"target {path}: architecture {fields.get('general.architecture')!r}; only 'llama' is read")
    config = _gguf_config(fields)
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        name = _hugging_face_name(tensor.name)
        weights[name] = _unpermuted(name, values, config).to(dtype)
    return Target(config, weights, device), _gguf_chat(fields)


def _gguf_config(fields: Mapping[str, Any]) -> TargetConfig:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return TargetConfig(
        hidden_size=hidden,
        intermediate_size=fields["llama.feed_forward_length"],
        num_layers=fields["llama.block_count"],
        num_heads=heads,
        num_kv_heads=fields["llama.attention.head_count_kv"],
        head_dim=fields.get("llama.rope.dimension_count", hidden // heads),
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=fields["llama.rope.freq_base"],
    )


def _hugging_face_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_GGUF_NAMES[parts[2]]}.weight"
    return f"{_GGUF_TOP[parts[0]]}.weight"


def _unpermuted(name: str, values: Tensor, config: TargetConfig) -> Tensor:
    """GGUF interleaves the halves of each rotary head of q and k; Hugging Face keeps them apart."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return values
    pairs = values.view(-1, config.head_dim // 2, 2, values.shape[-1])
    return pairs.transpose(1, 2).reshape(values.shape)


def _gguf_chat(fields: Mapping[str, Any]) -> Chat:
    before = fields.get("tokenizer.ggml.pre")
    if before != "smollm":
        raise EngineError(f"the target's pre-tokenizer is {before!r}; only 'smollm' is read from GGUF")
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL])
    return make_chat(tokenizer, fields["tokenizer.chat_template"], fields["tokenizer.ggml.eos_token_id"])


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise EngineError(f"{path} is not JSON: {error}") from error


def _load_folder(path: Path, device: torch.device, dtype: torch.dtype) -> tuple[Target, Chat]:
    values, chat = _read_json(path / "config.json"), _read_json(path / "tokenizer_config.json")
    if values.get("model_type") != "llama":
        raise EngineError(f"target {path}: model_type {values.get('model_type')!r}; only 'llama' is read")
    heads = values["num_attention_heads"]
    rope = values.get("rope_parameters") or values
    config = TargetConfig(
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        num_layers=values["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=values.get("num_key_value_heads", heads),
        head_dim=values.get("head_dim") or values["hidden_size"] // heads,
        vocab_size=values["vocab_size"],
        rms_norm_eps=values["rms_norm_eps"],
        rope_theta=rope["rope_theta"],
    )
    weights: dict[str, Tensor] = {}
    for part in sorted(path.glob("*.safetensors")):
        weights |= {name: tensor.to(dtype) for name, tensor in load_file(part).items()}
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    stop = tokenizer.token_to_id(chat["eos_token"])
    if stop is None:
        raise EngineError(f"target {path}: eos_token {chat['eos_token']!r} is not in tokenizer.json")
    return Target(config, weights, device), make_chat(tokenizer, chat["chat_template"], stop)
