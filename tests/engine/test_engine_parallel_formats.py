"""DFlash2 and DSpark in the step loop, and the knobs that all parallel drafters have: no token changes."""

from dataclasses import asdict

import pytest
import torch
from engine_helpers import NOISE, some_prompt

from engine.base import Request, Settings
from engine.cache import KVCache
from engine.drafters.dflash2 import DFlash2, DFlash2Config
from engine.drafters.dspark import DSpark, DSparkConfig
from engine.drafters.lattice import cut, greedy_walk
from engine.drafters.parallel import DFlashCheckpoint
from engine.loop import Decoder
from engine.stock import Stock

PROMPT = some_prompt(40, 3)
TAPS = (-1, 0)


def shape(target):
    return {
        "hidden_size": target.hidden,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": target.vocab,
        "num_target_layers": target.layers,
        "target_layer_ids": TAPS,
        "block_size": 5,
    }


def dflash2(target):
    selector = {"selector_rank": 8, "selector_top_k": 16}
    return DFlash2(DFlash2Config(**shape(target), conv_kernel_size=2, conv_group_size=16, **selector))


def dspark(target):
    heads = {"head_rank": 8, "head_type": "rnn", "confident": True, "confidence_reads_previous": True}
    return DSpark(DSparkConfig(**shape(target), sample_from_anchor=True, **heads))


@pytest.fixture(params=["dflash", "dflash2", "dspark"])
def checkpoint(request, tiny_model, tiny_dflash):
    if request.param == "dflash":
        return DFlashCheckpoint(tiny_dflash, tiny_model)
    torch.manual_seed(1)
    model = {"dflash2": dflash2, "dspark": dspark}[request.param](tiny_model.config)
    for name, p in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    return DFlashCheckpoint(model.to(torch.bfloat16).eval(), tiny_model, request.param)


def some_context(model):
    return torch.randn(39, model.fc.in_features, generator=torch.Generator().manual_seed(4)).bfloat16()


def started(checkpoint, **knobs):
    drafter = checkpoint.start(Settings(drafter=checkpoint.kind, draft_length=5, **knobs))
    drafter.extend(PROMPT, some_context(checkpoint.model))
    return drafter


@pytest.mark.parametrize("knobs", [{}, {"markov_head": False, "confidence": 0.3}])
def test_tokens_are_those_of_stock(checkpoint, tiny_model, knobs):
    decoder = Decoder(tiny_model, 512, checkpoint)
    settings = Settings(drafter=checkpoint.kind, draft_length=9, **knobs)
    found = decoder.generate(Request(prompt=PROMPT, max_tokens=40), settings)
    assert max(found.log.drafted) <= checkpoint.model.config.draft_length
    assert len(found.tokens) == 40
    assert max(Stock(decoder, threads=1).force(PROMPT, found.tokens).margins) < NOISE


def test_the_chain_is_in_every_lattice(checkpoint):
    drafter = started(checkpoint)
    chain = drafter.propose(9)
    for width in (1, 2, 7, 64):
        assert greedy_walk(drafter.lattice(9, width))[0].tolist() == chain


def test_a_draft_ends_where_it_is_unsure(checkpoint):
    """By the confidence head where there is one, else by the probability of the drafter's own best token."""
    whole = started(checkpoint).lattice(9, 3)
    assert (whole.confidence is None) == (checkpoint.kind != "dspark")
    sure = greedy_walk(whole)[1].exp() if whole.confidence is None else whole.confidence
    chain = started(checkpoint).propose(9)
    floors = sorted(sure.tolist())
    for floor in (floors[0] * 0.9, (floors[1] + floors[2]) / 2, min(1.0, floors[-1] * 1.1)):
        kept = next((i for i, chance in enumerate(sure) if chance < floor), len(sure))
        assert started(checkpoint, confidence=floor).propose(9) == chain[:kept]
        assert len(started(checkpoint, confidence=floor).lattice(9, 3).ids) == kept
    assert cut(whole, 0.0) is whole
    assert started(checkpoint, confidence=1.1).propose(9) == []


def test_behind_a_path_the_block_starts_where_the_path_ends(checkpoint):
    """Its last token is the anchor, at its own position, over the context of the committed text."""
    model, tables, anchor = checkpoint.model, checkpoint.tables, torch.tensor([9])
    context = model.inject(some_context(model), torch.arange(39))
    hidden = model(model.block(tables.embedding[anchor])[0], torch.arange(42, 47), context)
    expected = model.lattice(model.drafting_rows(hidden), anchor, tables, 64, 4)
    drafter = started(checkpoint)
    found = drafter.lattice(9, 4, [7, 8, 9])
    assert found.ids.shape == expected.ids.shape
    assert (found.ids[:, 0] == expected.ids[:, 0]).float().mean() > 0.5, "but for the rounding of a packed layout"
    torch.testing.assert_close(found.edges[0, 0], expected.edges[0, 0], atol=0.1, rtol=0.05)
    same_anchor = drafter.lattice(9, 4, [7, 8, PROMPT[-1]])
    assert not torch.equal(same_anchor.edges, drafter.lattice(9, 4).edges), "it stands at another position"


def test_the_head_for_pairs_has_a_knob(checkpoint):
    assert started(checkpoint).lattice(9, 3).edges.shape[1] == 3
    assert started(checkpoint, markov_head=False).lattice(9, 3).edges.shape[1] == 1
    assert started(checkpoint).lattice(3, 3).edges.shape[0] == 3


def test_few_tokens_may_be_drafted(checkpoint):
    drafter = started(checkpoint, draft_vocabulary=32)
    assert max(drafter.propose(9)) < 32
    assert int(drafter.lattice(9, 32).ids.max()) < 32


def test_the_embedding_can_be_tapped(tiny_model):
    tokens, cache = torch.tensor(PROMPT), KVCache(tiny_model.config, 64)
    _, tapped = tiny_model.forward_tapped(tokens, torch.arange(40), cache, taps=TAPS)
    assert torch.equal(tapped[:, :64], tiny_model.embedding[tokens])
    cache.reset()
    _, first = tiny_model.forward_tapped(tokens, torch.arange(40), cache, taps=(0,))
    assert torch.equal(tapped[:, 64:], first)


def test_defaults_leave_a_draft_as_it_is():
    knobs = asdict(Settings())
    assert (knobs["markov_head"], knobs["confidence"]) == (True, 0.0)
