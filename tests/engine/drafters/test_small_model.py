"""A small separate model as drafter: its chains against transformers, after rejections too, and what is refused."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from engine.base import Request, Settings
from engine.drafters.checkpoint import load_drafter_checkpoint
from engine.drafters.small import SmallModel, SmallModelDrafter
from engine.loop import Decoder
from engine.models.llama import Llama
from engine.weights.checkpoint import load_checkpoint
from space.errors import EngineError
from tests.engine.drafters.tiny import tiny_config, tiny_weights, write_tiny_target

CHUNKS = Settings(drafter="small", draft_length=4, prefill_chunk=64)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    return load_checkpoint(write_tiny_target(tmp_path_factory.mktemp("target"), tiny_weights()))


def gentle() -> dict[str, torch.Tensor]:
    """Weights that bfloat16 does little to: rounded before, and layers that add a third of what the target's do."""
    return {
        name: (tensor if "norm" in name or "embed" in name else tensor / 3).bfloat16()
        for name, tensor in tiny_weights(seed=3).items()
    }


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A model of the target's vocabulary with other weights."""
    return write_tiny_target(tmp_path / "small", gentle())


def loaded(folder: Path, target: Llama) -> SmallModel:
    checkpoint = load_drafter_checkpoint(folder, target)
    assert isinstance(checkpoint, SmallModel)
    return checkpoint


@torch.inference_mode()
def chain(reference: LlamaForCausalLM, text: list[int], count: int) -> tuple[list[int], bool]:
    """A greedy chain without any cache, and whether every choice in it is clear of bf16 noise."""
    drafted: list[int] = []
    clear = True
    for _ in range(count):
        row = reference(torch.tensor([[*text, *drafted]])).logits[0, -1]
        first, second = row.topk(2).values.tolist()
        clear &= first - second > 0.2
        drafted.append(int(row.argmax()))
    return drafted, clear


def test_chains_are_those_of_transformers_after_rejections_too(small: Path, target: Llama) -> None:
    reference = LlamaForCausalLM.from_pretrained(small, dtype=torch.float32)
    rng = random.Random(0)
    drafter, text = loaded(small, target).start(CHUNKS), [rng.randrange(259) for _ in range(150)]
    drafter.extend(text)
    compared = 0
    for accepted in (0, 4, 2, 0, 1, 3, 4, 4, 0, 2, 1, 0):
        drafted = drafter.propose(4)
        expected, clear = chain(reference, text, 4)
        assert drafted == expected or not clear
        compared += clear
        commit = [*drafted[:accepted], rng.randrange(259)]
        drafter.extend(commit)
        text += commit
    assert compared > 6


def test_only_the_new_tokens_are_processed(small: Path, target: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = Llama.forward
    monkeypatch.setattr(Llama, "forward", lambda self, t, *rest: (seen.append(len(t)), forward(self, t, *rest))[1])
    drafter = loaded(small, target).start(CHUNKS)
    drafter.extend(range(100))
    drafted = drafter.propose(3)
    drafter.extend([*drafted, 7])
    drafter.propose(2)  # all three held: the last of them and the bonus token are new
    drafter.extend([8])
    drafter.propose(1)
    assert seen == [64, 36, 1, 1, 2, 1, 1]


def test_tokens_are_those_of_ar_and_a_twin_is_always_right(small: Path, tmp_path: Path, target: Llama) -> None:
    request = Request(prompt=tuple(range(30, 60)), max_tokens=31)
    with torch.inference_mode():
        plain = Decoder(target, 256).generate(request, Settings())
        other = Decoder(target, 256, loaded(small, target)).generate(request, CHUNKS)
        twin = loaded(write_tiny_target(tmp_path / "twin", tiny_weights()), target)
        equal = Decoder(target, 256, twin).generate(request, CHUNKS)
    assert plain.tokens == other.tokens == equal.tokens
    assert equal.log.accepted == equal.log.drafted == [4] * 6
    assert sum(other.log.accepted) < sum(other.log.drafted)


def test_it_drafts_within_its_own_positions(small: Path, target: Llama) -> None:
    (small / "config.json").write_text(json.dumps(tiny_config() | {"max_position_embeddings": 64}))
    drafter = loaded(small, target).start(CHUNKS)
    drafter.extend(range(62))
    assert len(drafter.propose(4)) == 2
    drafter.extend([1, 2])
    assert drafter.propose(4) == []
    drafter.extend([3, 4])
    assert drafter.propose(4) == []


def test_what_does_not_fit_is_refused(small: Path, target: Llama) -> None:
    def refused(message: str) -> None:
        with pytest.raises(EngineError, match=message) as error:
            loaded(small, target)
        assert "\n" not in str(error.value)

    (small / "config.json").write_text(json.dumps(tiny_config() | {"model_type": "mamba"}))
    refused("model_type 'mamba': this engine runs 'llama'")
    weights = gentle()
    (small / "config.json").write_text(json.dumps(tiny_config() | {"vocab_size": 200}))
    table = weights["model.embed_tokens.weight"][:200].clone()
    save_file(weights | {"model.embed_tokens.weight": table}, small / "model.safetensors")
    refused("vocab_size is 200, the target has 259")
    (small / "config.json").write_text(json.dumps(tiny_config()))
    save_file(weights | {"model.norm.weight": torch.ones(7)}, small / "model.safetensors")
    refused(r"model.norm.weight has shape \(7,\)")
    del weights["model.norm.weight"]
    save_file(weights, small / "model.safetensors")
    refused("tensor model.norm.weight is missing")
    (small / "model.safetensors").write_bytes((small / "model.safetensors").read_bytes()[:2000])
    refused("cannot read model file")


def test_it_reads_no_taps(small: Path, target: Llama) -> None:
    drafter = loaded(small, target).start(CHUNKS)
    assert isinstance(drafter, SmallModelDrafter)
    assert drafter.taps == ()
