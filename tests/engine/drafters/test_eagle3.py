"""EAGLE-3: each public flavour against a naive implementation, in the step loop, and what is refused."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.base import Request, Settings
from engine.drafters.checkpoint import load_drafter_checkpoint
from engine.drafters.eagle3_drafter import Eagle3Checkpoint, Eagle3Drafter
from engine.loop import Decoder
from engine.models.llama import Llama
from engine.weights.checkpoint import load_checkpoint
from space.errors import EngineError
from tests.engine.drafters.eagle3_checkpoint import (
    DEEPSPEC,
    DRAFTS,
    SPECFORGE,
    SPECULATORS,
    VOCAB,
    weights,
    write_eagle3,
)
from tests.engine.drafters.naive_eagle3 import NaiveEagle3
from tests.engine.drafters.tiny import HIDDEN, tiny_weights, write_tiny_target

TABLE = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(5)).bfloat16()

# name: config, tensors, how the naive implementation reads them
FLAVOURS = {
    "specforge": (SPECFORGE, weights(), {}),
    "raw output into the head": (SPECFORGE | {"norm_output": False}, weights(seed=1), {"head_normed": False}),
    "true is the default": (SPECFORGE | {"norm_output": True}, weights(seed=2), {}),
    "eagle 3.1": (
        SPECFORGE | {"fc_norm": True, "norm_output": True},
        weights(seed=3, fc_norm=True),
        {"fed_normed": True},
    ),
    "eagle 3.1 switched off": (SPECFORGE | {"fc_norm": False, "norm_output": False}, weights(seed=4), {}),
    "speculators": (
        SPECULATORS,
        weights(layer="layers.0.", seed=5, input_norm=True),
        {"residual_normed": True, "layer": "layers.0."},
    ),
    "speculators feeding back": (
        SPECULATORS | {"norm_output": True, "norm_before_fc": False},
        weights(layer="layers.0.", seed=6),
        {"residual_normed": True, "fed_normed": True, "layer": "layers.0."},
    ),
    "deepspec": (
        DEEPSPEC,
        weights(layer="layers.0.", seed=7, drafts=VOCAB, qk_norm=True),
        {"layer": "layers.0."},
    ),
    "the target's embedding": (SPECFORGE, weights(seed=8, embedding=False), {}),
    "another width": (
        SPECFORGE | {"hidden_size": 40, "target_hidden_size": HIDDEN, "rope_theta": 500.0},
        weights(seed=9, hidden=40),
        {"theta": 500.0},
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    return load_checkpoint(write_tiny_target(tmp_path_factory.mktemp("target"), tiny_weights()))


def loaded(folder: Path, target: Llama) -> Eagle3Checkpoint:
    checkpoint = load_drafter_checkpoint(folder, target)
    assert isinstance(checkpoint, Eagle3Checkpoint)
    return checkpoint


@pytest.mark.parametrize("name", FLAVOURS)
def test_agrees_with_the_equations(tmp_path: Path, target: Llama, name: str) -> None:
    config, tensors, reading = FLAVOURS[name]
    checkpoint = loaded(write_eagle3(tmp_path, config, tensors), target)
    assert checkpoint.model.config.target_layers == (0, 1, 2)
    naive = NaiveEagle3(tensors, **reading)
    embedding = None if "embed_tokens.weight" in tensors else target.embedding.double().numpy()
    rng, taps = random.Random(1), torch.randn(30, 3 * HIDDEN, generator=torch.Generator().manual_seed(2))
    text = [rng.randrange(VOCAB) for _ in range(31)]
    taps = taps.bfloat16()

    drafter = checkpoint.start(Settings())
    drafter.extend(text[:9], taps[:8])
    drafter.propose(1)
    tokens, exact = naive.draft(text[:9], taps[:8].double().numpy(), 4, embedding)
    session = drafter._session
    output, past = session._last, session._past
    for i, (token, expected) in enumerate(zip(tokens, exact, strict=True)):
        assert output is not None
        found = session.logits(output)[0].detach().double().numpy()
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.03, f"step {i}"
        position = torch.tensor([session.length + i])
        fed = session.model.fed_back(output)
        output, past = session.model(session.embedding[[token]], fed, position, past)

    wide = checkpoint.model.float()
    table = wide.embed_tokens.weight if wide.embed_tokens is not None else target.embedding.float()
    drafter = Eagle3Drafter(wide, table, wide.lm_head.weight)
    drafter.extend(text[:9], taps[:8].float())
    at = 9
    for kept in (0, 3, 1, 4, 0, 2):  # drafts are rejected after so many: committed text differs from the chain
        expected, _ = naive.draft(text[:at], taps[: at - 1].double().numpy(), 4, embedding)
        assert drafter.propose(4) == expected
        drafter.extend(text[at : at + kept + 1], taps[at - 1 : at + kept].float())
        at += kept + 1


def test_the_default_taps_are_those_of_the_format(tmp_path: Path, target: Llama) -> None:
    """(2, L // 2, L - 3), counted by inputs."""
    config = {name: value for name, value in SPECFORGE.items() if name != "eagle_config"}
    write_eagle3(tmp_path, config, weights())
    with pytest.raises(EngineError, match=r"is \[2, 2, 1\]; .*0..3 \(the default for a file without the key\)"):
        loaded(tmp_path, target)


@pytest.mark.parametrize("ids", [[1, 2, 3], [0, 2, 3]])
def test_in_the_loop_drafts_are_those_of_the_equations_and_tokens_those_of_ar(
    tmp_path: Path, target: Llama, monkeypatch: pytest.MonkeyPatch, ids: list[int]
) -> None:
    """The taps of a real pass: the input of layer i, of every committed position, rejections included."""
    tensors = weights(seed=3)
    config = SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    checkpoint = loaded(write_eagle3(tmp_path, config, tensors), target)
    naive, drafts = NaiveEagle3(tensors), []
    propose = Eagle3Drafter.propose

    def recorded(self: Eagle3Drafter, limit: int) -> list[int]:
        drafts.append(propose(self, limit))
        return drafts[-1]

    monkeypatch.setattr(Eagle3Drafter, "propose", recorded)
    decoder, prompt = Decoder(target, 256, checkpoint), tuple(range(40, 60))
    with torch.inference_mode():
        found = decoder.generate(Request(prompt=prompt, max_tokens=24), Settings(drafter="eagle3", draft_length=3))
        plain = decoder.generate(Request(prompt=prompt, max_tokens=24), Settings())
        assert found.tokens == plain.tokens
        assert sum(found.log.drafted) > sum(found.log.accepted)
        text = [*prompt, *found.tokens]
        decoder.cache.reset()
        # Naive again: hidden states layer by layer are what forward_tapped gives for one layer alone.
        taps = torch.cat(
            [
                target.forward_tapped(torch.tensor(text), torch.arange(len(text)), decoder.cache, taps=(layer,))[1]
                for layer in (id - 1 for id in ids)
            ],
            -1,
        )
    at, agreed = len(prompt) + 1, 0
    for drafted, accepted in zip(drafts, found.log.accepted, strict=False):
        expected, logits = naive.draft(text[:at], taps[: at - 1].double().numpy(), len(drafted))
        clear = all(np.diff(np.sort(row)[-2:])[0] > 0.1 for row in logits)
        assert drafted == expected or not clear
        agreed += drafted == expected
        at += accepted + 1
    assert agreed > len(drafts) // 2


def test_older_weights_files_load(tmp_path: Path, target: Llama) -> None:
    tensors = {
        f"model.{name}": tensor.half() if tensor.is_floating_point() else tensor for name, tensor in weights().items()
    }
    (tmp_path / "config.json").write_text(json.dumps(SPECFORGE))
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    model = loaded(tmp_path, target).model
    assert model.fc.weight.dtype == torch.bfloat16
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(EngineError, match=r"pytorch_model.bin is damaged .*fetch it again"):
        loaded(tmp_path, target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_sise": 32}, "unknown key 'hidden_sise'; did you mean 'hidden_size'"),
        (
            {"eagle_config": {"layer_ids": [1], "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}},
            "unknown key 'layer_ids'",
        ),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, r"layer_ids is \[\]; inputs of"),
        ({"eagle_config": [1]}, r"eagle_config is \[1\]; an object"),
        ({"vocab_size": 999}, "vocab_size is 999; the drafter does not fit the target, which has 259"),
        ({"hidden_size": 64}, "hidden_size is 64; the drafter does not fit the target, which has 32"),
        ({"target_hidden_size": 48}, "target_hidden_size is 48; the drafter does not fit the target, which has 32"),
        ({"num_target_layers": 36}, "num_target_layers is 36; the drafter does not fit the target, which has 4"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}},
            r"\[2, 16, 29\]; inputs of a target of 4 layers rise strictly within 0..3",
        ),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 2, 1]}}, "rise strictly"),
        (
            {"eagle_config": {"use_aux_hidden_state": False}},
            "use_aux_hidden_state is False; this loader reads True only",
        ),
        ({"intermediate_size": None}, "lacks 'intermediate_size'"),
        ({"head_dim": 8.5}, "head_dim is 8.5; a whole number"),
        ({"num_attention_heads": -1}, "num_attention_heads is -1; a positive number"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of num_key_value_heads 3"),
        ({"norm_before_residual": 1}, "norm_before_residual is 1; true or false"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type is 'llama3'; this loader reads 'default' only"),
        ({"use_sliding_window": True, "sliding_window": 512}, "sliding_window is 512"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"draft_vocab_size": 5000}, "draft_vocab_size 5000 is above vocab_size"),
        ({"draft_vocab_size": 64}, r"tensor 'd2t' is torch.int64 \[96\]; config.json asks for torch.int64 \[64\]"),
        ({"norm_before_fc": True}, "lacks tensor 'input_norm.weight'"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "did you mean 'LlamaForCausalLMEagle3'"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    tmp_path: Path, target: Llama, change: dict[str, object], message: str
) -> None:
    write_eagle3(tmp_path, SPECFORGE | change, weights())
    with pytest.raises(EngineError, match=message) as refused:
        loaded(tmp_path, target)
    assert "\n" not in str(refused.value)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path, target: Llama) -> None:
    path = write_eagle3(tmp_path, SPECFORGE, weights()) / "model.safetensors"
    whole, tensors = path.read_bytes(), weights()

    def refused(message: str) -> None:
        with pytest.raises(EngineError, match=message) as error:
            loaded(tmp_path, target)
        assert "\n" not in str(error.value)

    path.write_bytes(whole[: len(whole) // 2])
    refused("model.safetensors is damaged .*fetch it again")
    path.unlink()
    refused("cannot read .*model.safetensors")
    for change, message in (
        ({"midlayer.hidden_norm.weight": None}, r"lacks tensor 'layers.0.hidden_norm.weight' \(1 missing\)"),
        ({"lm_head.weight": None}, "asks for tensor 'lm_head.weight'"),
        ({"d2t": None}, "asks for tensor 'd2t'"),
        ({"mask_hidden": torch.zeros(3)}, "unknown tensor 'mask_hidden'"),
        ({"fc.weight": tensors["fc.weight"][:, :HIDDEN].clone()}, r"'fc.weight' is torch.bfloat16 \[32, 32\]"),
        (
            {"norm.weight": torch.zeros(HIDDEN, dtype=torch.int8)},
            r"'norm.weight' is torch.int8 .* asks for torch.bfloat16 or",
        ),
        ({"norm.weight": torch.zeros(HIDDEN).to(torch.float8_e4m3fn)}, r"'norm.weight' is torch.float8_e4m3fn"),
        ({"d2t": torch.full((DRAFTS,), VOCAB)}, "d2t maps to token 259; the vocabulary has 0..258"),
    ):
        left = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
        save_file(left, path)
        refused(message)


def test_taps_are_asked_for(tmp_path: Path, target: Llama) -> None:
    drafter = loaded(write_eagle3(tmp_path, SPECFORGE, weights()), target).start(Settings())
    with pytest.raises(EngineError, match="needs the target's taps"):
        drafter.extend([1, 2, 3])
    with pytest.raises(EngineError, match="no context"):
        drafter.propose(2)
