"""DFlash2: convolutions and candidate selector against the equations."""

from pathlib import Path

import pytest
import torch

from engine.drafters.dflash2 import DFlash2Config, GroupedConvolution
from engine.drafters.lattice import greedy_walk
from engine.models.llama import Llama
from tests.engine.drafters import public_layouts as public
from tests.engine.drafters.naive_block import NaiveDFlash2
from tests.engine.drafters.parallel_oracle import assert_agrees, exact_drafter, load, some_taps

CONFIGS = {
    "as published": public.DFLASH2 | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5}
    | {"use_sliding_window": True},
    "flat": {k: v for k, v in public.DFLASH2.items() if k != "dflash_config"} | public.DFLASH2["dflash_config"],
    "three taps": public.nested(public.DFLASH2, conv_kernel_size=3, conv_group_size=8),
    "scales": public.nested(
        public.DFLASH2, input_embedding_scale=3.0, output_multiplier=0.6, final_logit_softcapping=4.0
    ),
    "few candidates": public.nested(public.DFLASH2, selector_top_k=2),
}  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Llama:
    return public.tables_only_target()


def checkpoint(folder: Path, name: str = "as published") -> Path:
    inner = CONFIGS[name].get("dflash_config", CONFIGS[name])
    parts = public.dflash2_parts(taps=inner["conv_kernel_size"], group=inner["conv_group_size"])
    return public.write(folder, CONFIGS[name], public.body() | parts)


def naive(folder: Path, target: Llama) -> NaiveDFlash2:
    return NaiveDFlash2(folder, target.embedding, target.head.weight)


@pytest.mark.parametrize("name", CONFIGS)
def test_agrees_with_the_equations(tmp_path: Path, target: Llama, name: str) -> None:
    folder = checkpoint(tmp_path, name)
    assert_agrees(folder, target, naive(folder, target))


def test_the_selector_changes_the_draft(tmp_path: Path, target: Llama) -> None:
    folder, taps = checkpoint(tmp_path), some_taps(6, 2 * public.HIDDEN)
    drafts = []
    for candidates in (0, None):
        drafter = exact_drafter(folder, target, candidates)
        drafter.extend([9] * 6, taps)
        drafts.append(drafter.propose(9))
    assert drafts[0] != drafts[1]
    double = naive(folder, target)
    rows = double.hidden(taps.double().numpy(), 9)
    assert drafts[1] == [int(double.logits(h).argmax()) for h in rows], "without it each row speaks for itself"


def test_edges_are_the_selectors_scores(tmp_path: Path, target: Llama) -> None:
    folder, taps = checkpoint(tmp_path), some_taps(6, 2 * public.HIDDEN)
    drafter, double = exact_drafter(folder, target), naive(folder, target)
    drafter.extend([9] * 6, taps)
    lattice, rows = drafter.lattice(9, 8), double.hidden(taps.double().numpy(), 9)
    assert lattice.ids.shape == (4, 8)
    assert lattice.confidence is None
    for j, hidden in enumerate(rows):
        assert set(lattice.ids[j].tolist()) == set(double.candidates(hidden))
        for a, previous in enumerate([9] if j == 0 else lattice.ids[j - 1].tolist()):
            scores = torch.tensor([double.score(hidden, previous, t) for t in lattice.ids[j].tolist()])
            torch.testing.assert_close(lattice.edges[j, a], scores.log_softmax(-1), atol=1e-4, rtol=1e-4)
    assert greedy_walk(lattice)[0].tolist() == drafter.propose(9)
    for width in (1, 3):
        narrow = drafter.lattice(9, width)
        assert narrow.ids.shape == (4, width)
        assert greedy_walk(narrow)[0].tolist() == drafter.propose(9)


def test_equal_scores_take_the_better_candidate(tmp_path: Path, target: Llama) -> None:
    """With a silent selector and equal rows of the head, the lower token of the equals is drafted."""
    parts = public.dflash2_parts()
    parts["candidate_selector.hidden_projection.weight"].zero_()
    head = public.own_tables()["lm_head.weight"]
    head[20:26] = head[:1] * 4
    folder = public.write(tmp_path, CONFIGS["as published"], public.body() | parts | {"lm_head.weight": head})
    drafter, taps = exact_drafter(folder, target), some_taps(6, 2 * public.HIDDEN)
    drafter.extend([9] * 6, taps)
    drafted = drafter.propose(9)
    assert not {21, 22, 23, 24, 25} & set(drafted)
    assert 20 in drafted


def test_a_row_never_looks_into_another_block() -> None:
    torch.manual_seed(0)
    config = DFlash2Config(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=9,
        num_target_layers=4,
        target_layer_ids=(0,),
        conv_kernel_size=2,
        conv_group_size=4,
        selector_rank=2,
        selector_top_k=2,
    )
    conv = GroupedConvolution(config)
    conv.base_kernel.data.normal_()
    x = torch.randn(2, 5, 8)
    both = conv(x, conv.kernels(x)[0])
    for block in range(2):
        torch.testing.assert_close(conv(x[block], conv.kernels(x[block])[0]), both[block])
    changed = x.clone()
    changed[0, 1] += 1
    difference = (conv(changed, conv.kernels(changed)[0]) - both).abs().sum(-1)
    assert (difference > 0).tolist() == [[False, True, True, False, False], [False] * 5]


def test_many_commits_are_one(tmp_path: Path, target: Llama) -> None:
    folder, taps = checkpoint(tmp_path), some_taps(17, 2 * public.HIDDEN)
    stepwise, done = exact_drafter(folder, target), 0
    for committed in (4, 1, 6, 1, 5):
        done += committed
        stepwise.extend([done] * committed, taps[done - committed : done])
        fresh = exact_drafter(folder, target)
        fresh.extend([done] * done, taps[:done])
        assert stepwise.propose(9) == fresh.propose(9)


def test_kind(tmp_path: Path, target: Llama) -> None:
    assert load(checkpoint(tmp_path), target).kind == "dflash2"
