"""DFlash, DFlash2 and DSpark in their public layouts, written again from the equations: one vector at a time.

Nothing is shared with the package. float64; slow on purpose. Reads config.json and tensors by itself.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

Vector = np.ndarray


def sigmoid(x: Vector) -> Vector:
    return 1 / (1 + np.exp(-x))


class NaiveBlock:
    """The body: one anchor row, masks, context injected into every layer."""

    first = 1
    sliding_is_causal = True

    def __init__(self, folder: Path, embedding: torch.Tensor, head: torch.Tensor) -> None:
        self.c = json.loads((folder / "config.json").read_text())
        self.w = {n: t.to(torch.float64).numpy() for n, t in load_file(folder / "model.safetensors").items()}
        self.embedding = self.w.get("embed_tokens.weight", embedding.double().numpy())
        self.head = self.w.get("lm_head.weight", head.double().numpy())
        self.ids = list(range(self.c["vocab_size"]))
        if "d2t" in self.w:
            self.ids = [i + int(offset) for i, offset in enumerate(self.w["d2t"])]
            if "lm_head.weight" not in self.w:
                self.head = self.head[self.ids]
        self.mask = self.embedding[self.key("mask_token_id")]

    def key(self, name: str, default: Any = None) -> Any:
        return self.c.get("dflash_config", {}).get(name, self.c.get(name, default))

    def norm(self, x: Vector, name: str) -> Vector:
        return x / math.sqrt(float(np.mean(x * x)) + self.c["rms_norm_eps"]) * self.w[name + ".weight"]

    def linear(self, x: Vector, name: str, rows: slice = slice(None)) -> Vector:
        out = self.w[name + ".weight"][rows] @ x
        return out + self.w[name + ".bias"][rows] if name + ".bias" in self.w else out

    def turn(self, head: Vector, position: int) -> Vector:
        half, out = len(head) // 2, np.empty_like(head)
        theta = self.c.get("rope_parameters", self.c)["rope_theta"]
        for i in range(half):
            angle = position * theta ** (-2 * i / len(head))
            a, b = head[i], head[i + half]
            out[i], out[i + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
        return out

    def sees(self, layer: int, query: int, key: int) -> bool:
        slides = self.c["layer_types"][layer] == "sliding_attention"
        causal = self.c.get("is_causal")
        if causal is None:
            causal = self.c.get("dflash_config", {}).get("causal")
        if causal is None:
            causal = slides and self.sliding_is_causal
        return not (causal and key > query) and not (slides and abs(query - key) >= self.c["sliding_window"])

    def attention(self, layer: int, context: list[Vector], rows: list[Vector], start: int) -> list[Vector]:
        c, at, size, out = self.c, f"layers.{layer}.self_attn.", self.c["head_dim"], []
        for r, x in enumerate(rows):
            heads = []
            for h in range(c["num_attention_heads"]):
                kv = h * c["num_key_value_heads"] // c["num_attention_heads"]
                mine, theirs = slice(h * size, h * size + size), slice(kv * size, kv * size + size)
                query = self.turn(self.norm(self.linear(x, at + "q_proj", mine), at + "q_norm"), start + r)
                scores, values = [], []
                for place, other in enumerate(context + rows):
                    if not self.sees(layer, start + r, place):
                        continue
                    key = self.turn(self.norm(self.linear(other, at + "k_proj", theirs), at + "k_norm"), place)
                    scores.append(query @ key / math.sqrt(size))
                    values.append(self.linear(other, at + "v_proj", theirs))
                weights = np.exp(np.array(scores) - max(scores))
                heads.append(sum(p * v for p, v in zip(weights / weights.sum(), values, strict=True)))
            out.append(self.linear(np.concatenate(heads), at + "o_proj"))
        return out

    def mlp(self, at: str, u: Vector) -> Vector:
        gate = self.linear(u, at + "gate_proj")
        return self.linear(gate * sigmoid(gate) * self.linear(u, at + "up_proj"), at + "down_proj")

    def convolve(self, name: str, side: int, asking: list[Vector], rows: list[Vector]) -> list[Vector]:
        return rows

    def hidden(self, taps: Vector, anchor: int) -> list[Vector]:
        """Final hidden states of the drafting rows; taps [p, taps * hidden] of positions 0..p-1, anchor at p."""
        context = [self.norm(self.w["fc.weight"] @ t, "hidden_norm") for t in taps]
        rows = [self.embedding[anchor]] + [self.mask] * (self.key("block_size") - 1)
        rows = [x * self.key("input_embedding_scale", 1.0) for x in rows]
        for i in range(self.c["num_hidden_layers"]):
            at = f"layers.{i}."
            asking = [self.norm(x, at + "input_layernorm") for x in rows]
            inner = self.convolve(at + "attention_conv.", 0, asking, asking)
            mixed = self.convolve(at + "attention_conv.", 1, asking, self.attention(i, context, inner, len(context)))
            rows = [x + m for x, m in zip(rows, mixed, strict=True)]
            asking = [self.norm(x, at + "post_attention_layernorm") for x in rows]
            inner = self.convolve(at + "mlp_conv.", 0, asking, asking)
            mixed = self.convolve(at + "mlp_conv.", 1, asking, [self.mlp(at + "mlp.", u) for u in inner])
            rows = [x + m for x, m in zip(rows, mixed, strict=True)]
        return [self.norm(x, "norm") for x in rows[self.first :]]

    def logits(self, hidden: Vector) -> Vector:
        """One row's logits over the tokens that may be drafted."""
        out, cap = self.head @ hidden * self.key("output_multiplier", 1.0), self.key("final_logit_softcapping")
        return cap * np.tanh(out / cap) if cap else out

    def draft(self, taps: Vector, anchor: int) -> list[int]:
        return [self.ids[int(np.argmax(self.logits(h)))] for h in self.hidden(taps, anchor)]


class NaiveDFlash2(NaiveBlock):
    """Convolutions, and the candidate selector."""

    def convolve(self, name: str, side: int, asking: list[Vector], rows: list[Vector]) -> list[Vector]:
        base, group = self.w[name + "base_kernel"], self.key("conv_group_size")
        taps, channels = base.shape[1], base.shape[2]
        out = []
        for r in range(len(rows)):
            delta = (self.w[name + "kernel_projection.weight"] @ asking[r]).reshape(2, taps, channels // group)
            total = np.zeros(channels)
            for t in range(min(taps, r + 1)):
                for d in range(channels):
                    total[d] += (base[side, t, d] + delta[side, t, d // group]) * rows[r - t][d]
            out.append(total)
        return out

    def candidates(self, hidden: Vector) -> list[int]:
        """The best tokens of a row, best first."""
        return [int(i) for i in np.argsort(-self.logits(hidden), kind="stable")[: self.key("selector_top_k")]]

    def score(self, hidden: Vector, previous: int, token: int) -> float:
        at = "candidate_selector."
        turned = self.w[at + "hidden_projection.weight"] @ hidden
        pair = sum(
            self.w[at + "predecessor_codebook"][previous][r] * turned[r] * self.w[at + "successor_codebook"][token][r]
            for r in range(len(turned))
        )
        return float(self.logits(hidden)[token] + pair)

    def draft(self, taps: Vector, anchor: int) -> list[int]:
        tokens = [anchor]
        for hidden in self.hidden(taps, anchor):
            scores = {token: self.score(hidden, tokens[-1], token) for token in self.candidates(hidden)}
            tokens.append(max(scores, key=lambda token: scores[token]))
        return tokens[1:]


class NaiveDSpark(NaiveBlock):
    """The anchor's row drafts too; Markov head of any kind, confidence."""

    first = 0
    sliding_is_causal = False

    def bias(self, hidden: Vector, previous: int, state: Vector) -> tuple[Vector, Vector]:
        """What is added to a row's logits, and the state behind it."""
        said = self.w["markov_head.markov_w1.weight"][previous]
        if "markov_head.gate_proj.weight" in self.w:
            said = sigmoid(self.linear(np.concatenate([hidden, said]), "markov_head.gate_proj")) * said
        if "markov_head.joint_proj.weight" in self.w:
            g, c, o = np.split(self.linear(np.concatenate([state, said, hidden]), "markov_head.joint_proj"), 3)
            state = sigmoid(g) * state + (1 - sigmoid(g)) * np.tanh(c)
            said = np.tanh(o)
        return self.w["markov_head.markov_w2.weight"] @ said, state

    def walk(self, taps: Vector, anchor: int) -> tuple[list[int], list[float], list[Vector]]:
        """The greedy chain over the whole table, the confidence and the states in front of each position."""
        tokens, sure, state = [anchor], [], np.zeros(self.key("markov_rank"))
        states = []
        for hidden in self.hidden(taps, anchor):
            states.append(state)
            bias, after = self.bias(hidden, tokens[-1], state)
            features = hidden
            if self.key("confidence_head_with_markov"):
                features = np.concatenate([hidden, self.w["markov_head.markov_w1.weight"][tokens[-1]]])
            if self.key("enable_confidence_head"):
                sure.append(float(sigmoid(self.linear(features, "confidence_head.proj"))[0]))
            state = after
            tokens.append(self.ids[int(np.argmax(self.logits(hidden) + bias))])
        return tokens[1:], sure, states

    def draft(self, taps: Vector, anchor: int) -> list[int]:
        return self.walk(taps, anchor)[0] if self.key("markov_rank") else super().draft(taps, anchor)
