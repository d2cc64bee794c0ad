"""DSpark: the anchor's row drafts, Markov heads of three kinds, confidence; against the equations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.base import Settings
from engine.drafters.lattice import greedy_walk
from engine.models.llama import Llama
from tests.engine.drafters import public_layouts as public
from tests.engine.drafters.naive_block import NaiveDSpark
from tests.engine.drafters.parallel_oracle import assert_agrees, exact_drafter, load, some_taps

KINDS = ("vanilla", "gated", "rnn")
FLAT = ("block_size", "mask_token_id", "target_layer_ids", "markov_rank", "markov_head_type")
FLAT += ("enable_confidence_head", "confidence_head_with_markov")
D2T = torch.tensor([3, 40, 2, 0, 21, 9, 30, 1, 1, 33, 5, 2])


@pytest.fixture(scope="module")
def target() -> Llama:
    return public.tables_only_target()


def specforge(config: dict[str, Any], architecture: str = "DSparkDraftModel") -> dict[str, Any]:
    """The same keys inside dflash_config."""
    inner = {name: config[name] for name in FLAT} | {"projector_type": "dspark", "attention_mode": "gqa"}
    inner["confidence_head_alpha"] = 1.0
    outer = {name: value for name, value in config.items() if name not in FLAT}
    return outer | {"architectures": [architecture], "dflash_config": inner}


def checkpoint(folder: Path, kind: str = "vanilla", **changes: Any) -> Path:
    config = public.DSPARK | {"markov_head_type": kind} | changes
    heads = public.dspark_heads(kind, reads=config["confidence_head_with_markov"])
    return public.write(folder, config, public.body() | public.own_tables() | heads)


def naive(folder: Path, target: Llama) -> NaiveDSpark:
    return NaiveDSpark(folder, target.embedding, target.head.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_equations(tmp_path: Path, target: Llama, kind: str) -> None:
    folder = checkpoint(tmp_path, kind)
    found = load(folder, target)
    assert found.kind == "dspark"
    assert found.model.config.draft_length == public.BLOCK
    assert_agrees(folder, target, naive(folder, target))


@pytest.mark.parametrize("architecture", ["DSparkDraftModel", "DFlashDraftModel"])
def test_nested_keys_and_the_targets_tables(tmp_path: Path, target: Llama, architecture: str) -> None:
    config = specforge(public.DSPARK, architecture)
    folder = public.write(tmp_path, config, public.body() | public.dspark_heads())
    assert load(folder, target).kind == "dspark"
    assert_agrees(folder, target, naive(folder, target))


def test_early_names_of_the_heads(tmp_path: Path, target: Llama) -> None:
    tensors = public.body() | public.own_tables() | public.dspark_heads()
    double = naive(public.write(tmp_path / "usual", public.DSPARK, tensors), target)
    early = {("logit_head." if "_head.m" in n or n.startswith("confidence") else "") + n: t for n, t in tensors.items()}
    assert early != tensors
    assert_agrees(public.write(tmp_path / "early", public.DSPARK, early), target, double)


def test_no_markov_head(tmp_path: Path, target: Llama) -> None:
    """DeepSeek's own dflash_*_block7 checkpoints: this layout without heads."""
    changes = {"markov_rank": 0, "enable_confidence_head": False, "confidence_head_with_markov": False}
    folder = public.write(tmp_path, public.DSPARK | changes, public.body() | public.own_tables())
    assert_agrees(folder, target, naive(folder, target))


def test_few_drafted_tokens(tmp_path: Path, target: Llama) -> None:
    config = public.DSPARK | {"draft_vocab_size": 12}
    tensors = public.body() | {"d2t": D2T} | public.dspark_heads(drafted=12)
    folder = public.write(tmp_path, config, tensors)
    assert_agrees(folder, target, naive(folder, target))
    start = load(folder, target).start(Settings(drafter="dspark", draft_vocabulary=4))
    start.extend([3] * 5, some_taps(5, 2 * public.HIDDEN).bfloat16())
    assert set(start.propose(9)) <= {3, 41, 4}


def test_sliding_layers_look_both_ways(tmp_path: Path, target: Llama) -> None:
    sliding = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4, "use_sliding_window": True}
    folder = checkpoint(tmp_path, **sliding)
    assert_agrees(folder, target, naive(folder, target))


@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_log_probabilities_given_what_stands_before(tmp_path: Path, target: Llama, kind: str) -> None:
    """An rnn head's are those with the state of the greedy walk, whichever candidate stands before."""
    heads = public.dspark_heads(kind)
    heads["markov_head.markov_w2.weight"] *= 2  # loud enough that the walk leaves what is likeliest on the whole
    config = public.DSPARK | {"markov_head_type": kind}
    folder = public.write(tmp_path, config, public.body() | public.own_tables() | heads)
    taps, double, aside = some_taps(6, 2 * public.HIDDEN), naive(folder, target), 0
    for anchor in (11, 15, 27, 35):
        drafter = exact_drafter(folder, target)
        drafter.extend([anchor] * 6, taps)
        lattice, rows = drafter.lattice(9, 6), double.hidden(taps.double().numpy(), anchor)
        chain, _, states = double.walk(taps.double().numpy(), anchor)
        assert lattice.ids.shape == (5, 6)
        for j, hidden in enumerate(rows):
            for a, previous in enumerate([anchor] if j == 0 else lattice.ids[j - 1].tolist()):
                logits = torch.from_numpy(double.logits(hidden) + double.bias(hidden, previous, states[j])[0])
                expected = logits.log_softmax(-1)[lattice.ids[j]].float()
                torch.testing.assert_close(lattice.edges[j, a], expected, atol=1e-4, rtol=1e-4)
        for width in (1, 2, 6, 50):
            assert greedy_walk(drafter.lattice(9, width))[0].tolist() == chain
        aside += sum(int(ids[0]) != token for ids, token in zip(lattice.ids[:-1], chain, strict=False))
    assert aside


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_confidence(tmp_path: Path, target: Llama, kind: str, reads: bool) -> None:
    folder, taps = checkpoint(tmp_path, kind, confidence_head_with_markov=reads), some_taps(6, 2 * public.HIDDEN)
    drafter = exact_drafter(folder, target)
    drafter.extend([9] * 6, taps)
    chain, sure, _ = naive(folder, target).walk(taps.double().numpy(), 9)
    for width in (1, 4):
        found = drafter.lattice(9, width).confidence
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), sure, rtol=1e-4, atol=1e-5)
    assert min(sure) < max(sure)
    for floor in (min(sure) * 0.99, sorted(sure)[2], max(sure) * 1.01):
        kept = next((i for i, c in enumerate(sure) if c < floor), len(sure))
        cut = exact_drafter(folder, target, confidence=floor * (1 - 1e-5))
        cut.extend([9] * 6, taps)
        assert cut.propose(9) == chain[:kept]
        assert len(cut.lattice(9, 4).ids) == len(cut.lattice(9, 4).confidence) == kept


def test_the_markov_head_can_be_left_out(tmp_path: Path, target: Llama) -> None:
    folder, taps = checkpoint(tmp_path), some_taps(6, 2 * public.HIDDEN)
    double = naive(folder, target)
    drafter = exact_drafter(folder, target, None)
    drafter.extend([9] * 6, taps)
    rows = [int(double.logits(h).argmax()) for h in double.hidden(taps.double().numpy(), 9)]
    assert drafter.propose(9) == rows != double.draft(taps.double().numpy(), 9)
    assert drafter.lattice(9, 3).edges.shape == (5, 1, 3)
    assert drafter.lattice(9, 3).confidence.shape == (5,)


@pytest.mark.parametrize("kind", KINDS)
def test_few_candidates_are_the_best_by_the_head_alone(tmp_path: Path, target: Llama, kind: str) -> None:
    folder, taps = checkpoint(tmp_path, kind), some_taps(6, 2 * public.HIDDEN)
    drafter, double = exact_drafter(folder, target, 4), naive(folder, target)
    drafter.extend([9] * 6, taps)
    lattice = drafter.lattice(9, 9)
    for ids, hidden in zip(lattice.ids, double.hidden(taps.double().numpy(), 9), strict=True):
        assert set(ids.tolist()) == set(np.argsort(-double.logits(hidden))[:4].tolist())
    torch.testing.assert_close(lattice.edges.exp().sum(-1), torch.ones(5, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_many_commits_are_one(tmp_path: Path, target: Llama, kind: str) -> None:
    folder, taps = checkpoint(tmp_path, kind), some_taps(17, 2 * public.HIDDEN)
    stepwise, done = exact_drafter(folder, target), 0
    for committed in (4, 1, 6, 1, 5):
        done += committed
        stepwise.extend([done] * committed, taps[done - committed : done])
        fresh = exact_drafter(folder, target)
        fresh.extend([done] * done, taps[:done])
        assert stepwise.propose(9) == fresh.propose(9)
        torch.testing.assert_close(stepwise.lattice(9, 1).confidence, fresh.lattice(9, 1).confidence)
