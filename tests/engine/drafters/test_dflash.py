import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.drafters.dflash import DFlash, DFlashConfig, DFlashSession
from engine.drafters.dflash_files import check_target, config_to_json, load_drafter, save_drafter
from space.errors import EngineError
from tests.engine.drafters.naive_dflash import NaiveDFlash

VOCAB = 50
CONFIG = DFlashConfig(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=VOCAB,
    num_target_layers=5,
    target_layer_ids=(0, 3),
    block_size=5,
    markov_rank=6,
)


def random_drafter(config: DFlashConfig, seed: int = 0) -> DFlash:
    model = DFlash(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * (p.shape[-1] ** -0.5 if p.dim() > 1 else 0.5))
    return model


def save(config: DFlashConfig, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    save_drafter(random_drafter(config), folder)
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(CONFIG, tmp_path / "drafter")


@pytest.mark.parametrize("rank", [0, 6])
def test_agrees_with_the_equations(tmp_path: Path, rank: int) -> None:
    folder = save(replace(CONFIG, markov_rank=rank), tmp_path / "drafter")
    model, naive = load_drafter(folder).float(), NaiveDFlash(folder)
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(VOCAB, CONFIG.hidden_size, generator=generator)
    head = torch.randn(VOCAB, CONFIG.hidden_size, generator=generator)
    taps = torch.randn(7, 2 * CONFIG.hidden_size, generator=generator)
    context = model.inject(taps, torch.arange(7))
    rows = model(model.block(embedding[[3]])[0], torch.arange(7, 12), context)
    expected = np.stack(naive.hidden(taps.double().numpy(), embedding[3].double().numpy()))
    np.testing.assert_allclose(rows[1:].detach().numpy(), expected, rtol=1e-4, atol=1e-4)
    session = DFlashSession(model, embedding, head)
    session.extend(taps[:4])
    session.extend(taps[4:])  # committed in two steps
    drafts = naive.draft(taps.numpy().astype(float), 3, embedding.double().numpy(), head.double().numpy())
    assert session.propose(3, 4, candidates=0) == drafts
    assert session.propose(3, 4, candidates=VOCAB) == drafts
    assert session.propose(3, 2, candidates=0) == drafts[:2]


def test_bfloat16_stays_close_to_the_equations(checkpoint: Path) -> None:
    model, naive = load_drafter(checkpoint), NaiveDFlash(checkpoint)
    generator = torch.Generator().manual_seed(2)
    anchor, taps = torch.randn(24, generator=generator), torch.randn(9, 48, generator=generator)
    context = model.inject(taps.bfloat16(), torch.arange(9))
    rows = model(model.block(anchor.bfloat16()), torch.arange(9, 14), context)[1:].detach().double().numpy()
    exact = np.stack(naive.hidden(taps.bfloat16().double().numpy(), anchor.bfloat16().double().numpy()))
    assert np.linalg.norm(rows - exact) / np.linalg.norm(exact) < 0.02


def test_few_candidates_are_chosen_without_the_head() -> None:
    model = random_drafter(CONFIG)
    hidden, table = torch.randn(3, 4, 24), torch.randn(VOCAB, 24)
    drafted = model.chain(hidden, torch.tensor([1, 2, 3]), table, table, candidates=1)
    assert torch.equal(drafted, (hidden @ table.T).argmax(-1))


def test_propose_needs_a_context() -> None:
    with pytest.raises(EngineError, match="no context"):
        DFlashSession(random_drafter(CONFIG), torch.zeros(VOCAB, 24), torch.zeros(VOCAB, 24)).propose(0, 4)


def test_checkpoint_survives_a_round_trip(checkpoint: Path, tmp_path: Path) -> None:
    model = load_drafter(checkpoint)
    assert model.config == CONFIG
    (tmp_path / "again").mkdir()
    save_drafter(model, tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (checkpoint / name).read_bytes()


def test_public_names(checkpoint: Path) -> None:
    names = set(load_file(checkpoint / "model.safetensors"))
    ours = {"mask_embedding", "markov_head.in_proj.weight", "markov_head.out_proj.weight"}
    layer = {f"self_attn.{p}_proj" for p in "qkvo"} | {"self_attn.q_norm", "self_attn.k_norm", "input_layernorm"}
    layer |= {"post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    public = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    assert names == ours | public | {f"layers.{i}.{part}.weight" for i in range(2) for part in layer}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0; a positive number"),
        ({"head_dim": 8.5}, "head_dim is 8.5; a whole number"),
        ({"num_hidden_layers": None}, "lacks 'num_hidden_layers'"),
        ({"block_sise": 8}, "unknown key 'block_sise'; did you mean 'block_size'"),
        ({"is_causal": 1}, "is_causal is 1; true or false"),
        ({"architectures": ["DFlash2DraftModel"]}, "architectures is .*DFlash2DraftModel"),
        ({"block_size": 1}, "block_size 1 must be at least 2"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of num_key_value_heads 3"),
        ({"dflash_config": 3}, "dflash_config is 3; an object"),
        ({"dflash_config": {"target_layer_ids": "0"}}, "target_layer_ids is '0'; a list"),
        ({"dflash_config": {"target_layer_ids": [0, 4]}}, "must rise strictly within 0..3"),
        (
            {"dflash_config": {"target_layer_ids": [0], "projector_type": "domino"}},
            "projector_type is 'domino'; allowed is none or 'tied_markov'",
        ),
        ({"dflash_config": {"target_layer_ids": [0], "tap": 1}}, "unknown key 'tap'"),
    ],
)
def test_malformed_config_is_refused(checkpoint: Path, change: dict[str, object], message: str) -> None:
    (checkpoint / "config.json").write_text(json.dumps(config_to_json(CONFIG) | change))
    with pytest.raises(EngineError, match=message):
        load_drafter(checkpoint)


def test_config_file_is_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(EngineError, match="is not JSON"):
        load_drafter(checkpoint)
    (checkpoint / "config.json").write_text("[]")
    with pytest.raises(EngineError, match="holds a list"):
        load_drafter(checkpoint)
    values = config_to_json(CONFIG)
    del values["vocab_size"]
    (checkpoint / "config.json").write_text(json.dumps(values))
    with pytest.raises(EngineError, match="lacks 'vocab_size'"):
        load_drafter(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(EngineError, match="cannot read .*config.json"):
        load_drafter(checkpoint)


def test_malformed_weights_are_refused(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    whole, tensors = path.read_bytes(), load_file(path)

    def refused(changed: dict[str, torch.Tensor], message: str) -> None:
        save_file(changed, path)
        with pytest.raises(EngineError, match=message) as error:
            load_drafter(checkpoint)
        assert "\n" not in str(error.value)

    refused({n: t for n, t in tensors.items() if n != "fc.weight"}, "lacks tensor 'fc.weight' .1 missing")
    refused(tensors | {"mask_hidden": torch.zeros(2)}, "unknown tensor 'mask_hidden'; did you mean 'mask_embedding'")
    refused(tensors | {"norm.weight": torch.zeros(23).bfloat16()}, r"'norm.weight' is torch.bfloat16 \[23\].*\[24\]")
    refused(tensors | {"norm.weight": torch.zeros(24).char()}, "'norm.weight' is torch.int8")
    path.write_bytes(whole[:-40])
    with pytest.raises(EngineError, match="is damaged"):
        load_drafter(checkpoint)
    path.unlink()
    with pytest.raises(EngineError, match="model.safetensors"):
        load_drafter(checkpoint)


def test_wrong_target_is_refused() -> None:
    check_target(CONFIG, hidden_size=24, vocab_size=VOCAB, num_layers=5)
    with pytest.raises(EngineError, match="num_target_layers is 5, the target has 30"):
        check_target(CONFIG, hidden_size=24, vocab_size=VOCAB, num_layers=30)
