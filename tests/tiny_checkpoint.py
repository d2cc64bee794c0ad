"""A tiny Llama checkpoint with random weights, in exactly the public layout: config.json, safetensors, tokenizer."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "vocab_size": 258,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "torch_dtype": "bfloat16",
}


def tiny_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random bf16 tensors by public name; greedy text both varies and repeats itself."""
    generator = torch.Generator().manual_seed(seed)
    hidden, ffn, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 32

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).bfloat16()

    tensors = {"model.embed_tokens.weight": random(CONFIG["vocab_size"], hidden)}
    tensors["model.norm.weight"] = torch.ones(hidden).bfloat16()
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": torch.ones(hidden).bfloat16(),
            f"{layer}.post_attention_layernorm.weight": torch.ones(hidden).bfloat16(),
            f"{layer}.self_attn.q_proj.weight": random(hidden, hidden),
            f"{layer}.self_attn.k_proj.weight": random(kv, hidden),
            f"{layer}.self_attn.v_proj.weight": random(kv, hidden),
            f"{layer}.self_attn.o_proj.weight": random(hidden, hidden),
            f"{layer}.mlp.gate_proj.weight": random(ffn, hidden),
            f"{layer}.mlp.up_proj.weight": random(ffn, hidden),
            f"{layer}.mlp.down_proj.weight": random(hidden, ffn),
        }
    return tensors


def write_tiny_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Writes the checkpoint folder: one token a byte, then <|start|> (256) and <|end|> (257)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(tiny_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|start|>", "<|end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"chat_template": TEMPLATE, "bos_token": "<|start|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    return folder
