"""Every variant of the public DFlash config and file loads, and drafts what the equations say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.drafters.dflash_body import visible
from engine.drafters.dflash_shape import default_taps
from engine.models.llama import Llama
from tests.engine.drafters import public_layouts as public
from tests.engine.drafters.naive_block import NaiveBlock
from tests.engine.drafters.parallel_oracle import assert_agrees, exact_drafter, load, some_taps

SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True}
ALL_SLIDING = SLIDING | {"layer_types": ["sliding_attention"] * 2}
D2T = torch.tensor([3, 40, 2, 0, 21, 9, 30, 1, 1, 33, 5, 2])


@pytest.fixture(scope="module")
def target() -> Llama:
    return public.tables_only_target()


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def naive(folder: Path, target: Llama) -> NaiveBlock:
    return NaiveBlock(folder, target.embedding, target.head.weight)


CONFIGS: dict[str, dict[str, Any]] = {
    "as in Qwen3": public.DFLASH,
    "block size inside": public.nested(without(public.DFLASH, "block_size"), block_size=4),
    "the inner block size wins": public.nested(public.DFLASH, block_size=3),
    "all keys flat": without(public.DFLASH, "dflash_config") | public.DFLASH["dflash_config"],
    "rope parameters": without(public.DFLASH, "rope_theta")
    | {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
    "taps under the old name": public.DFLASH | {"dflash_config": {"mask_token_id": public.MASK, "layer_ids": [1, 6]}},
    "taps not listed": without(public.DFLASH, "num_target_layers") | {"dflash_config": {"mask_token_id": public.MASK}},
    "the embedding tapped": public.nested(public.DFLASH, target_layer_ids=[-1, 6]),
    "a sliding layer": public.DFLASH | SLIDING,
    "sliding from a layer on": without(public.DFLASH, "layer_types")
    | {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1},
    "sliding from a layer beyond": without(public.DFLASH, "layer_types", "max_window_layers")
    | {"sliding_window": 4, "use_sliding_window": True},
    "sliding, not causal": public.DFLASH | ALL_SLIDING | {"is_causal": False},
    "all causal": public.DFLASH | {"is_causal": True},
    "causal inside": public.nested(public.DFLASH, causal=True),
    "outside before inside": public.nested(public.DFLASH | SLIDING | {"is_causal": False}, causal=True),
    "inside before the layers' kind": public.nested(public.DFLASH | SLIDING, causal=False),
    "scales": public.nested(
        public.DFLASH, input_embedding_scale=2.5, output_multiplier=0.5, final_logit_softcapping=3.0
    ),
    "harmless keys": public.nested(
        public.DFLASH
        | {"_name_or_path": "x", "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "torch_dtype": "bf"},
        mask_token="<|mask|>",
        loss_decay_gamma=7.0,
        attention_mode="gqa",
        attention_sink_bias=False,
        use_swa=False,
    ),
    "the short form": without(public.DFLASH, "layer_types", "sliding_window", "use_sliding_window"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config_variants(tmp_path: Path, target: Llama, name: str) -> None:
    folder = public.write(tmp_path, CONFIGS[name], public.body())
    double = naive(folder, target)
    second = "sliding_attention" if name == "sliding from a layer on" else "full_attention"
    double.c.setdefault("layer_types", ["full_attention", second])
    assert_agrees(folder, target, double)


def renamed(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    def usual(name: str) -> str:
        for old, new in names.items():
            name = name.replace(old, new)
        return name

    return {usual(name): tensor for name, tensor in tensors.items()}


def fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """q, k and v of each layer in one tensor."""
    out = dict(tensors)
    for i in range(2):
        for kind in ("weight", "bias"):
            parts = [out.pop(f"layers.{i}.self_attn.{p}_proj.{kind}") for p in "qkv"]
            out[f"layers.{i}.self_attn.qkv_proj.{kind}"] = torch.cat(parts)
    return out


TENSORS: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
    "biases": ({"attention_bias": True}, public.biases()),
    "tables of its own": ({}, public.own_tables()),
    "only an embedding of its own": ({}, {"embed_tokens.weight": public.own_tables()["embed_tokens.weight"]}),
    "few drafted tokens": ({"draft_vocab_size": 12}, {"d2t": D2T, "t2d": torch.ones(public.VOCAB).bool()}),
    "few drafted tokens, their own head": ({"draft_vocab_size": 12}, {"d2t": D2T} | public.own_tables(drafted=12)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensor_variants(tmp_path: Path, target: Llama, name: str) -> None:
    change, tensors = TENSORS[name]
    folder = public.write(tmp_path, public.DFLASH | change, public.body() | tensors)
    assert_agrees(folder, target, naive(folder, target))


def test_drafted_ids_are_offsets_and_their_rows_are_gathered(tmp_path: Path, target: Llama) -> None:
    folder = public.write(tmp_path, public.DFLASH | {"draft_vocab_size": 12}, public.body() | {"d2t": D2T})
    tables = load(folder, target).tables
    assert tables.ids.tolist() == [3, 41, 4, 3, 25, 14, 36, 8, 9, 42, 15, 13]
    assert tables.head.is_contiguous()
    assert torch.equal(tables.head[1], target.head.weight[41])
    assert tables.first(2).tokens(torch.tensor([1, 0])).tolist() == [41, 3]


SPELLINGS = {"fc.weight": "encoder.fc.weight", "hidden_norm": "encoder.output_norm_enc", "layers.0.": "midlayer."}


@pytest.mark.parametrize("form", ["fused", "spelled otherwise", "float32", "in two files"])
def test_other_spellings_are_the_same_drafter(tmp_path: Path, target: Llama, form: str) -> None:
    config, tensors = public.DFLASH | {"attention_bias": True}, public.body() | public.biases()
    double = naive(public.write(tmp_path / "usual", config, tensors), target)
    folder = public.write(tmp_path / "other", config, tensors)
    if form == "fused":
        public.write(folder, config, fused(tensors))
    elif form == "spelled otherwise":
        public.write(folder, config, renamed(tensors, SPELLINGS))
    elif form == "float32":
        public.write(folder, config, {name: tensor.float() for name, tensor in tensors.items()})
    else:
        (folder / "model.safetensors").unlink()
        place = {name: f"part{i % 2}.safetensors" for i, name in enumerate(tensors)}
        for file in ("part0.safetensors", "part1.safetensors"):
            save_file({n: t for n, t in tensors.items() if place[n] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    assert_agrees(folder, target, double)


@pytest.mark.parametrize("place", ["tensor", "side file"])
def test_the_masks_row_may_come_with_the_drafter(tmp_path: Path, target: Llama, place: str) -> None:
    row = public.Dice(3)(public.HIDDEN, scale=5)
    tensors = public.body() | ({"mask_embedding": row} if place == "tensor" else {})
    folder = public.write(tmp_path, public.DFLASH, tensors)
    if place == "side file":
        torch.save({"embedding": row, "mask_token_id": public.MASK}, folder / "mask_embedding.pt")
    double = naive(folder, target)
    assert not torch.equal(torch.from_numpy(double.mask).bfloat16(), row)
    double.mask = row.double().numpy()
    assert_agrees(folder, target, double)


def test_a_target_of_another_width(tmp_path: Path) -> None:
    config = public.DFLASH | {"target_hidden_size": 16}
    folder = public.write(tmp_path, config, public.body(tap_size=16) | public.own_tables())
    target = public.tables_only_target(hidden=16)
    assert_agrees(folder, target, naive(folder, target))


def test_default_taps() -> None:
    assert default_taps(36, 5) == (1, 9, 17, 25, 33)  # Qwen3-4B and -8B
    assert default_taps(32, 5) == (1, 8, 15, 22, 29)  # Qwen3.5-4B
    assert default_taps(64, 5) == (1, 16, 31, 46, 61)  # Qwen3.6-27B
    assert default_taps(30, 1) == (1,)


def test_a_window_counts_the_row_itself() -> None:
    block, context = torch.arange(6, 9), torch.arange(2, 6)
    seen = visible(block, context, 3, causal=True)
    assert [row.nonzero().flatten().tolist() for row in seen] == [[2, 3, 4], [3, 4, 5], [4, 5, 6]]
    assert visible(block, context, 0, causal=False) is None


@pytest.mark.parametrize("name", ["as in Qwen3", "a sliding layer", "sliding, not causal"])
def test_many_commits_are_one(tmp_path: Path, target: Llama, name: str) -> None:
    """Drafting after commits of any size, with drafts in between, is drafting from scratch on the same prefix."""
    folder = public.write(tmp_path, CONFIGS[name], public.body())
    taps, stepwise = some_taps(24, 2 * public.HIDDEN), exact_drafter(folder, target)
    done = 0
    for committed in (5, 1, 3, 1, 1, 8, 5):
        done += committed
        stepwise.extend([done % public.VOCAB] * committed, taps[done - committed : done])
        fresh = exact_drafter(folder, target)
        fresh.extend([done % public.VOCAB] * done, taps[:done])
        assert stepwise.propose(9) == fresh.propose(9)
        found, expected = stepwise.lattice(9, 4), fresh.lattice(9, 4)
        assert torch.equal(found.ids, expected.ids)
        torch.testing.assert_close(found.edges, expected.edges, atol=1e-5, rtol=1e-5)


def test_what_left_the_window_is_not_kept(tmp_path: Path, target: Llama) -> None:
    folder = public.write(tmp_path, public.DFLASH | SLIDING, public.body())
    drafter = exact_drafter(folder, target)
    drafter.extend([3] * 10, some_taps(10, 2 * public.HIDDEN))
    assert [keys.shape[1] for keys, _ in drafter._session._context] == [3, 10]
