"""DFlash with a tied Markov head, written again from the equations: one vector, one head, one position at a time.

Nothing is shared with engine/drafters/dflash.py; float64 throughout. Slow on purpose.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file


class NaiveDFlash:
    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.w = {name: t.to(torch.float64).numpy() for name, t in load_file(folder / "model.safetensors").items()}

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / math.sqrt(float(np.mean(x * x)) + self.config["rms_norm_eps"]) * self.w[name + ".weight"]

    def turn(self, head: np.ndarray, position: int) -> np.ndarray:
        half = len(head) // 2
        out = np.empty_like(head)
        for i in range(half):
            angle = position * self.config["rope_theta"] ** (-2 * i / len(head))
            a, b = head[i], head[i + half]
            out[i], out[i + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
        return out

    def key_value(self, x: np.ndarray, layer: str, kv_head: int, position: int) -> tuple[np.ndarray, np.ndarray]:
        size = self.config["head_dim"]
        rows = slice(kv_head * size, (kv_head + 1) * size)
        key = self.norm(self.w[layer + "self_attn.k_proj.weight"][rows] @ x, layer + "self_attn.k_norm")
        return self.turn(key, position), self.w[layer + "self_attn.v_proj.weight"][rows] @ x

    def hidden(self, taps: np.ndarray, anchor: np.ndarray) -> list[np.ndarray]:
        """Final hidden states of the mask rows; taps [p, taps * hidden] of positions 0..p-1, anchor at position p."""
        c, w = self.config, self.w
        context = [self.norm(w["fc.weight"] @ t, "hidden_norm") for t in taps]
        start, size = len(context), c["head_dim"]
        rows = [anchor] + [w["mask_embedding"]] * (c["block_size"] - 1)
        for i in range(c["num_hidden_layers"]):
            at = f"layers.{i}."
            inner = [self.norm(x, at + "input_layernorm") for x in rows]
            after = []
            for r, x in enumerate(rows):
                heads = []
                for h in range(c["num_attention_heads"]):
                    kv_head = h * c["num_key_value_heads"] // c["num_attention_heads"]
                    query = w[at + "self_attn.q_proj.weight"][h * size : (h + 1) * size] @ inner[r]
                    query = self.turn(self.norm(query, at + "self_attn.q_norm"), start + r)
                    pairs = [self.key_value(x, at, kv_head, j) for j, x in enumerate(context + inner)]
                    scores = np.array([query @ key / math.sqrt(size) for key, _ in pairs])
                    weights = np.exp(scores - scores.max())
                    heads.append(sum(p * v for p, (_, v) in zip(weights / weights.sum(), pairs, strict=True)))
                x = x + w[at + "self_attn.o_proj.weight"] @ np.concatenate(heads)
                u = self.norm(x, at + "post_attention_layernorm")
                gate = w[at + "mlp.gate_proj.weight"] @ u
                gated = gate / (1 + np.exp(-gate)) * (w[at + "mlp.up_proj.weight"] @ u)
                after.append(x + w[at + "mlp.down_proj.weight"] @ gated)
            rows = after
        return [self.norm(x, "norm") for x in rows[1:]]

    def logits(self, hidden: np.ndarray, previous: np.ndarray, head: np.ndarray) -> np.ndarray:
        if "markov_head.in_proj.weight" in self.w:
            z = self.w["markov_head.in_proj.weight"] @ np.concatenate([hidden, previous])
            hidden = hidden + self.w["markov_head.out_proj.weight"] @ (z / (1 + np.exp(-z)))
        return head @ hidden

    def draft(self, taps: np.ndarray, anchor: int, embedding: np.ndarray, head: np.ndarray) -> list[int]:
        tokens = [anchor]
        for hidden in self.hidden(taps, embedding[anchor]):
            tokens.append(int(np.argmax(self.logits(hidden, embedding[tokens[-1]], head))))
        return tokens[1:]
