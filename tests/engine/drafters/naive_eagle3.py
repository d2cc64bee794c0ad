"""EAGLE-3 written again from its equations: one vector, one head, one position at a time, everything anew each step.

Nothing is shared with engine/drafters; float64. What a public file means is told to it, not read from it: the
switches are arguments.
"""

import math

import numpy as np
import torch


class NaiveEagle3:
    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        *,
        layer: str = "midlayer.",
        theta: float = 10000.0,
        eps: float = 1e-6,
        heads: int = 4,
        kv_heads: int = 2,
        size: int = 8,
        residual_normed: bool = False,
        head_normed: bool = True,
        fed_normed: bool = False,
    ) -> None:
        self.w = {name.replace(layer, "layer."): t.double().numpy() for name, t in tensors.items() if name != "t2d"}
        self.theta, self.eps, self.heads, self.kv_heads, self.size = theta, eps, heads, kv_heads, size
        self.residual_normed, self.head_normed, self.fed_normed = residual_normed, head_normed, fed_normed

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / math.sqrt(float(np.mean(x * x)) + self.eps) * self.w[name + ".weight"]

    def turn(self, head: np.ndarray, position: int) -> np.ndarray:
        half, out = len(head) // 2, np.empty_like(head)
        for i in range(half):
            angle = position * self.theta ** (-2 * i / len(head))
            a, b = head[i], head[i + half]
            out[i], out[i + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
        return out

    def fused(self, taps: np.ndarray) -> np.ndarray:
        if "fc_norm.0.weight" in self.w:
            parts = np.split(taps, sum(name.startswith("fc_norm.") for name in self.w))
            taps = np.concatenate([self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)])
        if "input_norm.weight" in self.w:
            taps = self.norm(taps, "input_norm")
        return self.w["fc.weight"] @ taps

    def head(self, read: np.ndarray, name: str, index: int) -> np.ndarray:
        return self.w[f"layer.self_attn.{name}_proj.weight"][index * self.size : (index + 1) * self.size] @ read

    def turned(self, read: np.ndarray, name: str, index: int, position: int) -> np.ndarray:
        vector = self.head(read, name, index)
        if f"layer.self_attn.{name}_norm.weight" in self.w:
            vector = self.norm(vector, f"layer.self_attn.{name}_norm")
        return self.turn(vector, position)

    def last(self, embedded: list[np.ndarray], features: list[np.ndarray]) -> np.ndarray:
        """The output of the last of these rows, at positions 0, 1, 2 and so on."""
        normed = [self.norm(g, "layer.hidden_norm") for g in features]
        reads = [
            np.concatenate([self.norm(e, "layer.input_layernorm"), g]) for e, g in zip(embedded, normed, strict=True)
        ]
        at, mixed = len(reads) - 1, []
        for h in range(self.heads):
            kv = h * self.kv_heads // self.heads
            query = self.turned(reads[at], "q", h, at)
            scores = np.array([query @ self.turned(r, "k", kv, j) / math.sqrt(self.size) for j, r in enumerate(reads)])
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            mixed.append(sum(s * self.head(r, "v", kv) for s, r in zip(shares, reads, strict=True)))
        x = (normed[at] if self.residual_normed else features[at]) + self.w[
            "layer.self_attn.o_proj.weight"
        ] @ np.concatenate(mixed)
        u = self.norm(x, "layer.post_attention_layernorm")
        gate = self.w["layer.mlp.gate_proj.weight"] @ u
        return x + self.w["layer.mlp.down_proj.weight"] @ (
            gate / (1 + np.exp(-gate)) * (self.w["layer.mlp.up_proj.weight"] @ u)
        )

    def draft(
        self, text: list[int], taps: np.ndarray, count: int, embedding: np.ndarray | None = None
    ) -> tuple[list[int], list[np.ndarray]]:
        """Drafted tokens and the logits that they come from; taps [len(text) - 1, taps * hidden]."""
        table = self.w["embed_tokens.weight"] if embedding is None else embedding
        features, following = [self.fused(t) for t in taps], list(text[1:])
        tokens, logits = [], []
        for _ in range(count):
            output = self.last([table[token] for token in following], features)
            logits.append(self.w["lm_head.weight"] @ (self.norm(output, "norm") if self.head_normed else output))
            best = int(np.argmax(logits[-1]))
            tokens.append(best + int(self.w["d2t"][best]) if "d2t" in self.w else best)
            features.append(self.norm(output, "norm") if self.fed_normed else output)
            following.append(tokens[-1])
        return tokens, logits
