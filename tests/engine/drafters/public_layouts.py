"""Tiny random drafter checkpoints, written in exactly the public layouts, and a target's tables for them.

Nothing of the package's writers is used: names, shapes and keys are spelled out here.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.models.config import LlamaConfig
from engine.models.linear import Linear
from engine.models.llama import Llama

HIDDEN, FFN, HEADS, KV_HEADS, SIZE, VOCAB, DEPTH, BLOCK, MASK = 24, 40, 4, 2, 8, 50, 9, 5, 47
TAPS = [1, 6]

QWEN3: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": SIZE,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": FFN,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 4096,
    "max_window_layers": 2,
    "model_type": "qwen3",
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "num_key_value_heads": KV_HEADS,
    "num_target_layers": DEPTH,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "transformers_version": "4.57.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}
DFLASH = QWEN3 | {
    "architectures": ["DFlashDraftModel"],
    "block_size": BLOCK,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS},
}
DFLASH2 = QWEN3 | {
    "architectures": ["DFlash2DraftModel"],
    "is_causal": False,
    "dflash_config": {
        "block_size": BLOCK,
        "conv_group_size": 4,
        "conv_kernel_size": 2,
        "mask_token_id": MASK,
        "selector_rank": 6,
        "selector_top_k": 8,
        "target_layer_ids": TAPS,
    },
}
DSPARK = QWEN3 | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": BLOCK,
    "confidence_head_with_markov": True,
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 6,
    "mask_token_id": MASK,
    "num_anchors": 512,
    "target_layer_ids": TAPS,
}


class Dice:
    """Random tensors of a size that keeps every part of the drafter audible."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.5) -> Tensor:
        return (torch.randn(shape, generator=self.generator) * scale * shape[-1] ** -0.5).bfloat16()

    def norm(self, size: int) -> Tensor:
        return (1 + 0.3 * torch.randn(size, generator=self.generator)).bfloat16()


def body(seed: int = 0, *, taps: int = 2, tap_size: int = HIDDEN, hidden: int = HIDDEN) -> dict[str, Tensor]:
    """The tensors that all three formats share."""
    dice = Dice(seed)
    tensors = {
        "fc.weight": dice(hidden, taps * tap_size),
        "hidden_norm.weight": dice.norm(hidden),
        "norm.weight": dice.norm(hidden),
    }
    for i in range(2):
        at = f"layers.{i}."
        tensors |= {
            at + "input_layernorm.weight": dice.norm(hidden),
            at + "post_attention_layernorm.weight": dice.norm(hidden),
            at + "self_attn.q_proj.weight": dice(HEADS * SIZE, hidden),
            at + "self_attn.k_proj.weight": dice(KV_HEADS * SIZE, hidden),
            at + "self_attn.v_proj.weight": dice(KV_HEADS * SIZE, hidden),
            at + "self_attn.o_proj.weight": dice(hidden, HEADS * SIZE),
            at + "self_attn.q_norm.weight": dice.norm(SIZE),
            at + "self_attn.k_norm.weight": dice.norm(SIZE),
            at + "mlp.gate_proj.weight": dice(FFN, hidden),
            at + "mlp.up_proj.weight": dice(FFN, hidden),
            at + "mlp.down_proj.weight": dice(hidden, FFN),
        }
    return tensors


def biases(seed: int = 5) -> dict[str, Tensor]:
    """What `attention_bias` adds."""
    dice, sizes = Dice(seed), {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE, "o": HIDDEN}
    return {f"layers.{i}.self_attn.{p}_proj.bias": dice(n, scale=3) for i in range(2) for p, n in sizes.items()}


def dflash2_parts(seed: int = 6, *, taps: int = 2, group: int = 4, rank: int = 6) -> dict[str, Tensor]:
    """Convolutions and selector."""
    dice, tensors = Dice(seed), dict[str, Tensor]()
    for i in range(2):
        for conv in ("attention_conv", "mlp_conv"):
            at = f"layers.{i}.{conv}."
            tensors[at + "base_kernel"] = dice(2, taps, HIDDEN, scale=3)
            tensors[at + "kernel_projection.weight"] = dice(2 * taps * (HIDDEN // group), HIDDEN, scale=0.5)
    at = "candidate_selector."
    return tensors | {
        at + "hidden_projection.weight": dice(rank, HIDDEN),
        at + "predecessor_codebook": dice(VOCAB, rank, scale=3),
        at + "successor_codebook": dice(VOCAB, rank, scale=3),
    }


def dspark_heads(
    kind: str = "vanilla", seed: int = 7, *, rank: int = 6, reads: bool = True, drafted: int = VOCAB
) -> dict[str, Tensor]:
    """Markov head and confidence head."""
    dice = Dice(seed)
    tensors = {
        "markov_head.markov_w1.weight": dice(VOCAB, rank, scale=3),
        "markov_head.markov_w2.weight": dice(drafted, rank, scale=3),
        "confidence_head.proj.weight": dice(1, HIDDEN + rank * reads),
        "confidence_head.proj.bias": dice(1, scale=0.3),
    }
    if kind == "gated":
        tensors["markov_head.gate_proj.weight"] = dice(rank, HIDDEN + rank, scale=2)
        tensors["markov_head.gate_proj.bias"] = dice(rank)
    if kind == "rnn":
        tensors["markov_head.joint_proj.weight"] = dice(3 * rank, 2 * rank + HIDDEN, scale=2)
        tensors["markov_head.joint_proj.bias"] = dice(3 * rank)
    return tensors


def own_tables(seed: int = 8, *, drafted: int = VOCAB, hidden: int = HIDDEN) -> dict[str, Tensor]:
    """Input and output table of the drafter's own."""
    dice = Dice(seed)
    return {"embed_tokens.weight": dice(VOCAB, hidden, scale=4), "lm_head.weight": dice(drafted, hidden, scale=4)}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Writes a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def nested(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The config with changes inside dflash_config."""
    return config | {"dflash_config": config.get("dflash_config", {}) | changes}


def tables_only_target(hidden: int = HIDDEN, vocab: int = VOCAB, depth: int = DEPTH) -> Llama:
    """A target of which only shape and tables exist: all that loading a drafter and drafting need."""
    dice = Dice(11)
    config = LlamaConfig(
        hidden=hidden,
        layers=depth,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=SIZE,
        ffn=FFN,
        vocab=vocab,
        rope_theta=1e4,
        norm_eps=1e-5,
        tied=False,
        max_position=64,
        stop_ids=(),
    )
    embedding, head = dice(vocab, hidden, scale=4), dice(vocab, hidden, scale=4)
    return Llama(config, embedding, [], torch.ones(hidden).bfloat16(), Linear(head))
