"""A tiny GGUF file of the tiny model, as llama.cpp lays it out, and what it means in the public layout."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.torch import save_file
from tiny_checkpoint import CONFIG, TEMPLATE, tiny_weights
from tokenizers import pre_tokenizers

PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "<|start|>", "<|end|>"]
KINDS = [1] * 257 + [3, 3]
HEADS = {"q_proj": CONFIG["num_attention_heads"], "k_proj": CONFIG["num_key_value_heads"]}


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{PARTS[part]}.weight"


def row_order(heads: int, rows: int) -> list[int]:
    """Public rows in GGUF's order: of each head, row i and the one half a head further stand together."""
    dim = rows // heads
    return [head * dim + i + half for head in range(heads) for i in range(dim // 2) for half in (0, dim // 2)]


def quantise(name: str, weight: np.ndarray) -> tuple[np.ndarray, GGMLQuantizationType]:
    """Norms in F32, embeddings in Q8_0, values in F16, the rest in Q4_1."""
    if weight.ndim == 1:
        kind = GGMLQuantizationType.F32
    elif "embed" in name or "lm_head" in name:
        kind = GGMLQuantizationType.Q8_0
    elif "v_proj" in name:
        kind = GGMLQuantizationType.F16
    else:
        kind = GGMLQuantizationType.Q4_1
    return quants.quantize(weight, kind), kind


def source_weights(tied: bool) -> dict[str, torch.Tensor]:
    """The tiny weights with one more token, norms that are not all one, and a head of its own if not tied."""
    generator = torch.Generator().manual_seed(5)
    tensors = tiny_weights(seed=3)
    more = len(TOKENS) - CONFIG["vocab_size"]
    embedding = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = torch.cat((embedding, embedding[:more]))
    if not tied:
        shape = len(TOKENS), CONFIG["hidden_size"]
        tensors["lm_head.weight"] = torch.randn(shape, generator=generator) * shape[1] ** -0.5
    for name in [name for name in tensors if "norm" in name]:
        tensors[name] = 1 + 0.2 * torch.randn(CONFIG["hidden_size"], generator=generator)
    return tensors


def write_gguf(path: Path, *, tied: bool = True, fields: dict | None = None, extra_tensor: str | None = None):
    """Writes the file; returns the weights that it holds, dequantised to bf16, by public name and in public order.

    `fields` replaces metadata by key; None leaves a key out.
    """
    writer = GGUFWriter(str(path), "llama")
    about = {
        "llama.context_length": CONFIG["max_position_embeddings"],
        "llama.embedding_length": CONFIG["hidden_size"],
        "llama.feed_forward_length": CONFIG["intermediate_size"],
        "llama.block_count": CONFIG["num_hidden_layers"],
        "llama.attention.head_count": CONFIG["num_attention_heads"],
        "llama.attention.head_count_kv": CONFIG["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": CONFIG["rms_norm_eps"],
        "llama.rope.freq_base": CONFIG["rope_theta"],
        "llama.rope.scaling.type": None,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.chat_template": TEMPLATE,
    } | (fields or {})
    writer.kv_data[0].pop("general.architecture")
    writer.add_string("general.architecture", about.pop("general.architecture", "llama"))
    for key, value in about.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        if value is not None:
            add[type(value)](key, value)
    held = {}
    for name, tensor in source_weights(tied).items():
        weight = tensor.float().numpy()
        rows = next((row_order(heads, len(weight)) for part, heads in HEADS.items() if part in name), None)
        stored, kind = quantise(name, weight if rows is None else weight[rows])
        writer.add_tensor(gguf_name(name), stored, raw_dtype=kind)
        plain = torch.from_numpy(np.array(gguf.dequantize(stored, kind), dtype=np.float32))
        held[name] = (plain if rows is None else plain[torch.tensor(rows).argsort()]).bfloat16()
    if extra_tensor is not None:
        writer.add_tensor(extra_tensor, np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def write_public(folder: Path, held: dict[str, torch.Tensor]) -> Path:
    """The same weights as a checkpoint folder that no converter of ours has touched (without a tokenizer)."""
    folder.mkdir()
    tied = "lm_head.weight" not in held
    config = CONFIG | {"vocab_size": len(TOKENS), "bos_token_id": 257, "eos_token_id": 258, "tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
