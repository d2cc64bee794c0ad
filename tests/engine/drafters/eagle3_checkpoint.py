"""Tiny EAGLE-3 checkpoints with random weights, in the public layouts, for the target of tiny.py."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.engine.drafters.tiny import FFN, HIDDEN, LAYERS, tiny_tokenizer

HEADS, KV_HEADS, SIZE, DRAFTS = 4, 2, 8, 96
VOCAB = tiny_tokenizer().get_vocab_size()

# The keys of a public SpecForge file.
SPECFORGE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": SIZE,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": FFN,
    "max_position_embeddings": 2048,
    "max_window_layers": 48,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFTS,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
}
NESTED = ("head_dim", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
NESTED += ("num_key_value_heads", "rms_norm_eps", "rope_theta", "vocab_size", "hidden_act", "model_type")
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.2.0",
    "speculators_config": {"algorithm": "eagle3"},
    "transformer_layer_config": {name: SPECFORGE[name] for name in NESTED},
    "draft_vocab_size": DRAFTS,
    "norm_before_residual": True,
    "norm_before_fc": True,
    "norm_output": False,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    "torch_dtype": "bfloat16",
}
DEEPSPEC = {name: value for name, value in SPECFORGE.items() if name not in ("eagle_config", "draft_vocab_size")}
DEEPSPEC |= {"architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", "target_layer_ids": [0, 1, 2]}
DEEPSPEC |= {"num_target_layers": LAYERS}


def weights(
    *,
    layer: str = "midlayer.",
    drafts: int = DRAFTS,
    taps: int = 3,
    seed: int = 0,
    hidden: int = HIDDEN,
    embedding: bool = True,
    qk_norm: bool = False,
    input_norm: bool = False,
    fc_norm: bool = False,
) -> dict[str, torch.Tensor]:
    """bf16 tensors by public name; a draft vocabulary smaller than the target's comes with d2t and t2d."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * shape[-1] ** -0.5).bfloat16()

    def norm(size: int) -> torch.Tensor:
        return (1 + 0.3 * torch.randn(size, generator=generator)).bfloat16()

    tensors = {
        "fc.weight": draw(hidden, taps * HIDDEN),
        layer + "hidden_norm.weight": norm(hidden),
        layer + "input_layernorm.weight": norm(hidden),
        layer + "post_attention_layernorm.weight": norm(hidden),
        layer + "self_attn.q_proj.weight": draw(HEADS * SIZE, 2 * hidden),
        layer + "self_attn.k_proj.weight": draw(KV_HEADS * SIZE, 2 * hidden),
        layer + "self_attn.v_proj.weight": draw(KV_HEADS * SIZE, 2 * hidden),
        layer + "self_attn.o_proj.weight": draw(hidden, HEADS * SIZE),
        layer + "mlp.gate_proj.weight": draw(FFN, hidden),
        layer + "mlp.up_proj.weight": draw(FFN, hidden),
        layer + "mlp.down_proj.weight": draw(hidden, FFN),
        "norm.weight": norm(hidden),
        "lm_head.weight": draw(drafts, hidden),
    }
    if embedding:
        tensors["embed_tokens.weight"] = draw(VOCAB, hidden)
    if qk_norm:
        tensors |= {layer + "self_attn.q_norm.weight": norm(SIZE), layer + "self_attn.k_norm.weight": norm(SIZE)}
    if input_norm:
        tensors["input_norm.weight"] = norm(taps * HIDDEN)
    if fc_norm:
        tensors |= {f"fc_norm.{i}.weight": norm(HIDDEN) for i in range(taps)}
    if drafts < VOCAB:
        kept = torch.randperm(VOCAB, generator=generator)[:drafts].sort().values
        tensors["d2t"] = kept - torch.arange(drafts)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, True)
    return tensors


def write_eagle3(folder: Path, config: dict[str, object], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
