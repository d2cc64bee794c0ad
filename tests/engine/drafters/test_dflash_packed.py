"""The packed drafter against its reference: the same hidden states, and drafts that the equations allow."""

from dataclasses import replace

import pytest
import torch
from engine_helpers import some_prompt

from engine.drafters.dflash import DFlash
from engine.drafters.dflash_packed import PackedDFlash, PackedSession, packable
from engine.drafters.dflash_tensors import OwnTables, join
from engine.drafters.lattice import greedy_walk
from space.errors import EngineError

ROUNDING = 0.06  # of bf16, in hidden states of size one


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.fixture(params=["whole vocabulary", "draft vocabulary", "no head"])
def drafter(request, tiny_dflash):
    changes = {"draft vocabulary": {"draft_vocab_size": 100}, "no head": {"markov_rank": 0}}.get(request.param, {})
    torch.manual_seed(5)
    model = DFlash(replace(tiny_dflash.config, **changes))
    for weight in model.parameters():
        weight.data.add_(torch.randn(weight.shape) * 0.1)
    if model.d2t is not None:
        model.d2t.copy_(torch.randperm(tiny_dflash.config.vocab_size)[:100] - torch.arange(100))
    return model.to(torch.bfloat16).eval()


@pytest.fixture(params=["plain", "packed"])
def packed(request, drafter, tiny_model):
    packed = PackedDFlash(drafter, join(drafter, OwnTables(None, None), tiny_model), tiny_model)
    packed.use(request.param, 0)
    return packed


def reference_hidden(drafter, taps, anchor, embedding):
    context = drafter.inject(taps, torch.arange(len(taps)))
    rows = drafter.block(embedding[anchor][None])[0]
    positions = torch.arange(len(taps), len(taps) + drafter.config.block_size)
    return drafter(rows, positions, context)[1:]


@pytest.mark.parametrize("pieces", [(9,), (4, 1, 4), (70, 3, 1, 40)])
def test_hidden_states_are_the_references_however_the_context_came(packed, drafter, tiny_model, pieces):
    taps = torch.randn(sum(pieces), 64).bfloat16()
    cache = packed.cache()
    for piece in taps.split(pieces):
        packed.inject(piece, cache)
        packed.hidden(3, 4, cache)  # a draft leaves no trace in the context
    found = packed.hidden(7, 3, cache)
    expected = reference_hidden(drafter, taps, 7, tiny_model.embedding)[:3]
    assert expected.float().abs().max() > 0.5
    torch.testing.assert_close(found.float(), expected.float(), atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("candidates", [None, 0, 16, 10_000])
def test_every_draft_is_the_best_by_the_equations(packed, drafter, tiny_model, candidates):
    """logits = E (h + B silu(A [h ; E[previous]])), in float32, over the tokens that may be drafted."""
    cache = packed.cache()
    packed.inject(torch.randn(12, 64).bfloat16(), cache)
    hidden = packed.hidden(9, 4, cache)
    drafted = packed.chain(hidden, 9, candidates)
    ids = drafter.draft_ids()
    ids = torch.arange(len(tiny_model.embedding)) if ids is None else ids
    table, head, previous = tiny_model.embedding.float(), tiny_model.head.weight.float(), 9
    assert len(drafted) == 4
    for h, token in zip(hidden.float(), drafted, strict=True):
        unary = head[ids] @ h
        if drafter.markov_head is not None and candidates is not None:
            own = drafter.markov_head.in_proj.weight.float() @ torch.cat((h, table[previous]))
            h = h + drafter.markov_head.out_proj.weight.float() @ torch.nn.functional.silu(own)
        scores = (head[ids] @ h).where(unary >= unary.sort(descending=True)[0][: candidates or None][-1], -torch.inf)
        chosen = scores[ids == token]
        assert len(chosen) == 1, "only the draft vocabulary is drafted"
        assert chosen > scores.max() - 0.1
        previous = token


@pytest.mark.parametrize("candidates", [None, 16])
def test_the_lattice_is_the_references_and_holds_the_drafted_chain(packed, drafter, tiny_model, candidates):
    cache = packed.cache()
    packed.inject(torch.randn(12, 64).bfloat16(), cache)
    hidden = packed.hidden(9, 4, cache)
    tables = join(drafter, OwnTables(None, None), tiny_model)
    found = packed.lattice(hidden, 9, 6, candidates)
    expected = drafter.lattice(hidden, torch.tensor([9]), tables, candidates, 6)
    assert found.edges.shape == expected.edges.shape
    assert greedy_walk(found)[0].tolist() == packed.chain(hidden, 9, candidates)
    torch.testing.assert_close(found.edges.max(-1)[0][:, 0], expected.edges.max(-1)[0][:, 0], atol=0.2, rtol=0.05)


def test_only_the_common_shape_is_packed(tiny_dflash):
    assert packable(tiny_dflash.config)
    for change in ({"windows": (8, 0)}, {"causal": (True, False)}, {"attention_bias": True}, {"logit_scale": 2.0}):
        assert not packable(replace(tiny_dflash.config, **change))


def test_the_first_tokens_of_the_draft_vocabulary(packed, drafter):
    packed.use("plain", 8)
    cache = packed.cache()
    packed.inject(torch.randn(12, 64).bfloat16(), cache)
    ids = drafter.draft_ids()
    allowed = set(range(8)) if ids is None else set(ids[:8].tolist())
    assert set(packed.chain(packed.hidden(9, 4, cache), 9, 64)) <= allowed


def test_a_session_needs_context(packed):
    with pytest.raises(EngineError, match="extend it with the prompt's taps"):
        PackedSession(packed).propose(some_prompt(1, 0)[0], 4, 16)
