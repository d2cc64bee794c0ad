"""What engine tests share: prompts, noise-aware comparison of logits, checkpoint variants, and an exact target."""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint

from engine.loop import Decoder
from engine.models.config import LlamaConfig
from engine.stock import Stock

NOISE = 0.1
"""Logits. Two bf16 paths through the tiny model differ by less on any CPU; its choices are mostly clearer than this."""

DRAW_NOISE = 0.02
"""Cumulated probability: by how much NOISE in the logits may move the borders between tokens that can be drawn."""


def some_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(256) for _ in range(length))


def assert_same_logits(found: torch.Tensor, expected: torch.Tensor, tolerance: float = NOISE) -> None:
    """Close everywhere, and with the same choice wherever the expected choice is clear."""
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    best = expected.topk(2, dim=-1).values
    clear = best[..., 0] - best[..., 1] > 2 * tolerance
    assert clear.any()
    assert torch.equal(found.argmax(-1)[clear], expected.argmax(-1)[clear])


def assert_same_answer(model, request, found, expected):
    """The same tokens; or, where they part, one that stock itself may choose with other rounding."""
    if found == expected:
        return
    at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b)
    stock, greedy = Stock(Decoder(model, 1024), threads=1), request.sampling.temperature == 0
    whole = found[: at + 1]
    trace = stock.force(request.prompt, whole, request.sampling)
    assert trace.margins[at] < (NOISE if greedy else DRAW_NOISE), f"token {at}: {found[at]}, expected {expected[at]}"


def write_variant(folder: Path, *, kv_heads: int = 2, tied: bool = True, shards: int = 1) -> Path:
    """The tiny checkpoint with another number of KV heads, a head of its own, or its tensors in several files."""
    write_tiny_checkpoint(folder)
    config_path, model_path = folder / "config.json", folder / "model.safetensors"
    config = json.loads(config_path.read_text())
    tensors = load_file(model_path)
    generator = torch.Generator().manual_seed(7)
    for name in [name for name in tensors if "k_proj" in name or "v_proj" in name]:
        weight = torch.randn(kv_heads * config["head_dim"], config["hidden_size"], generator=generator)
        tensors[name] = (weight * config["hidden_size"] ** -0.5).bfloat16()
    for name in [name for name in tensors if "norm" in name]:
        tensors[name] = (1 + 0.2 * torch.randn(config["hidden_size"], generator=generator)).bfloat16()
    if not tied:
        shape = config["vocab_size"], config["hidden_size"]
        tensors["lm_head.weight"] = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).bfloat16()
    config |= {"num_key_value_heads": kv_heads, "tie_word_embeddings": tied}
    config_path.write_text(json.dumps(config))
    model_path.unlink()
    if shards == 1:
        save_file(tensors, model_path, metadata={"format": "pt"})
        return folder
    place = {name: f"model-{1 + i % shards:05}-of-{shards:05}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(place.values()):
        part = {name: tensor for name, tensor in tensors.items() if place[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


class ExactTarget:
    """Stands in for a model, in whole numbers: the next token is a function of every token that the cache holds.

    Its text mostly repeats a short cycle and now and then leaves it, so drafts are accepted and rejected. Nothing is
    rounded: any other order of rows, or one wrong position in the cache, shows as another token.
    """

    def __init__(self, vocab: int = 4, seed: int = 0) -> None:
        rng = random.Random(seed)
        self._a, self._b, self._c = (rng.randrange(1, vocab) for _ in range(3))
        self._vocab = vocab
        self._odd = rng.randrange(5, 12)
        self.config = LlamaConfig(
            hidden=1,
            layers=1,
            heads=1,
            kv_heads=1,
            head_dim=1,
            ffn=1,
            vocab=vocab,
            rope_theta=1.0,
            norm_eps=0.0,
            tied=True,
            max_position=4096,
            stop_ids=(),
        )
        self.passes: list[int] = []
        self.paths: list[str] = []

    def use(self, linear_path):
        self.paths.append(linear_path)

    def forward(self, tokens, positions, cache, visible=None):
        assert visible is None
        assert positions.tolist() == list(range(cache.length, cache.length + len(tokens)))
        self.passes.append(len(tokens))
        cache.reserve(len(tokens))
        cache.write(0, tokens[:, None, None].bfloat16(), -tokens[:, None, None].bfloat16())
        seen = cache.keys[0, 0, :, 0].long().tolist()
        ends = range(cache.length + 1, cache.length + len(tokens) + 1)
        return torch.tensor([[self._next(seen[:end])] for end in ends])

    def forward_tapped(self, tokens, positions, cache, visible=None, taps=()):
        assert taps == ()
        return self.forward(tokens, positions, cache, visible), None

    def forward_packed(self, parts, taps=()):
        assert taps == ()
        assert len({id(part.cache) for part in parts}) == len(parts)
        return torch.cat([self.forward(part.tokens, part.positions, part.cache, part.visible) for part in parts]), None

    def logits(self, hidden):
        return torch.nn.functional.one_hot(hidden[:, 0], self._vocab).float()

    def _next(self, text: list[int]) -> int:
        whole = sum((index % 31 + 1) * (token + 1) for index, token in enumerate(text))
        before = text[-2] if len(text) > 1 else 0
        return (self._a * text[-1] + self._b * before + self._c + (whole % self._odd == 0)) % self._vocab
