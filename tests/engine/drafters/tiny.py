"""A target small enough to train a drafter for on a CPU: random weights in Hugging Face layout, a byte tokenizer."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, SIZE = 32, 48, 4, 4, 2, 8
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> Tokenizer:
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def tiny_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 2 * shape[-1] ** -0.5

    vocabulary = tiny_tokenizer().get_vocab_size()
    weights = {"model.embed_tokens.weight": draw(vocabulary, HIDDEN), "model.norm.weight": 1 + 0.1 * draw(HIDDEN)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        weights |= {
            at + "input_layernorm.weight": 1 + 0.1 * draw(HIDDEN),
            at + "post_attention_layernorm.weight": 1 + 0.1 * draw(HIDDEN),
            at + "self_attn.q_proj.weight": draw(HEADS * SIZE, HIDDEN),
            at + "self_attn.k_proj.weight": draw(KV_HEADS * SIZE, HIDDEN),
            at + "self_attn.v_proj.weight": draw(KV_HEADS * SIZE, HIDDEN),
            at + "self_attn.o_proj.weight": draw(HIDDEN, HEADS * SIZE),
            at + "mlp.gate_proj.weight": draw(FFN, HIDDEN),
            at + "mlp.up_proj.weight": draw(FFN, HIDDEN),
            at + "mlp.down_proj.weight": draw(HIDDEN, FFN),
        }
    return weights


def chained_weights() -> dict[str, torch.Tensor]:
    """Each token has one successor, whatever came before, in rounds of eight: text that a drafter learns in seconds."""
    weights = tiny_weights()
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = torch.zeros_like(weights[name])
    table = weights["model.embed_tokens.weight"]
    starts = range(0, len(table), 8)
    rounds = [list(range(start, min(start + 8, len(table)))) for start in starts]
    before = [i for tokens in rounds for i in (tokens[-1], *tokens[:-1])]
    return weights | {"lm_head.weight": table[before].clone()}


def tiny_config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": SIZE,
        "vocab_size": tiny_tokenizer().get_vocab_size(),
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }


def write_tiny_target(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_config()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[1], "chat_template": TEMPLATE}))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    save_file(weights, folder / "model.safetensors")
    return folder
