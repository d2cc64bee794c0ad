"""Turns a GGUF file of a Llama model into an ordinary Hugging Face checkpoint folder, dequantised once to bf16.

Quantised blocks are expanded by the `gguf` package. The folder then loads in this engine, in transformers and in vLLM.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from space.errors import EngineError

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL = 3
"""GGUF token type of control tokens such as <|im_start|>."""


def _public_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _TOP:
        return f"{_TOP[stem]}.weight"
    block, _, rest = stem.partition(".")
    index, _, part = rest.partition(".")
    if block != "blk" or part not in _NAMES:
        raise EngineError(f"GGUF tensor {name!r} is not one of a plain Llama model")
    return f"model.layers.{index}.{_NAMES[part]}.weight"


def _to_halves(weight: Tensor, heads: int) -> Tensor:
    """Undoes GGUF's row order of query and key weights (neighbouring pairs) into the public one (two halves)."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _tensors(reader: GGUFReader, heads: int, kv_heads: int) -> dict[str, Tensor]:
    tensors = {}
    for entry in reader.tensors:
        values = torch.from_numpy(np.array(dequantize(entry.data, entry.tensor_type), dtype=np.float32))
        values = values.reshape(tuple(int(n) for n in reversed(entry.shape)))
        if entry.name.endswith(("attn_q.weight", "attn_k.weight")):
            values = _to_halves(values, heads if "attn_q" in entry.name else kv_heads)
        tensors[_public_name(entry.name)] = values.to(torch.bfloat16).contiguous()
    return tensors


def _tokenizer(tokens: list[str], merges: list[str], types: list[int], flavour: str) -> Tokenizer:
    """Byte-level BPE as GGUF describes it. `smollm` splits digits singly before GPT-2's pattern."""
    if flavour not in ("smollm", "gpt2", "default"):
        raise EngineError(f"GGUF pre-tokenizer {flavour!r}: allowed is smollm, gpt2 or default")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    parts = [digits, byte_level] if flavour == "smollm" else [byte_level]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _config(field: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads, hidden = int(field["llama.attention.head_count"]), int(field["llama.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(field["llama.feed_forward_length"]),
        "num_hidden_layers": int(field["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(field.get("llama.attention.head_count_kv", heads)),
        "head_dim": int(field.get("llama.attention.key_length", hidden // heads)),
        "rms_norm_eps": round(float(field["llama.attention.layer_norm_rms_epsilon"]), 12),
        "rope_theta": float(field.get("llama.rope.freq_base", 10000.0)),
        "max_position_embeddings": int(field["llama.context_length"]),
        "vocab_size": len(field["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "bos_token_id": int(field["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(field["tokenizer.ggml.eos_token_id"]),
        "torch_dtype": "bfloat16",
    }


def _check(field: dict[str, Any]) -> None:
    """Refuses what this engine would run wrongly."""
    for key, allowed, default in (
        ("general.architecture", "llama", None),
        ("llama.rope.scaling.type", "none", "none"),
        ("tokenizer.ggml.model", "gpt2", None),
    ):
        if field.get(key, default) != allowed:
            raise EngineError(f"GGUF {key} {field.get(key)!r}: allowed is {allowed!r}")


def _write(reader: GGUFReader, folder: Path) -> None:
    field = {name: value.contents() for name, value in reader.fields.items()}
    _check(field)
    tied = all(entry.name != "output.weight" for entry in reader.tensors)
    config = _config(field, tied)
    tensors = _tensors(reader, config["num_attention_heads"], config["num_key_value_heads"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    tokens = field["tokenizer.ggml.tokens"]
    flavour = field.get("tokenizer.ggml.pre", "default")
    tokenizer = _tokenizer(tokens, field["tokenizer.ggml.merges"], field["tokenizer.ggml.token_type"], flavour)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": field.get("tokenizer.chat_template", ""),
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2), encoding="utf-8")


def convert_gguf(source: Path, folder: Path) -> None:
    """Writes the checkpoint folder for a GGUF file; it appears whole or not at all.

    Raises:
        EngineError: the file is unreadable, not a plain Llama model, or the disk is full.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=folder.parent) as scratch:
            part = Path(scratch) / folder.name
            part.mkdir()
            _write(GGUFReader(str(source)), part)
            os.replace(part, folder)
    except KeyError as error:
        raise EngineError(f"cannot convert {source}: the file has no key {error}") from error
    except (OSError, SafetensorError, ValueError, IndexError, NotImplementedError) as error:
        raise EngineError(
            f"cannot convert {source}: {error}\nRemove a damaged file, or free space, and retry."
        ) from error
