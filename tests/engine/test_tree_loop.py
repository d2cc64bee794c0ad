"""Trees in the step loop: whatever the shape and whatever level one thinks, the text is AR's, and so is the state."""

import random

import pytest
import torch
from engine_helpers import NOISE, ExactTarget, some_prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from scored_drafter import ScoredModel

from engine.base import Request, Settings
from engine.drafters import make_drafter
from engine.drafters.parallel import DFlashCheckpoint, DFlashDrafter
from engine.loop import Decoder
from engine.stock import Stock
from engine.verify import speculation
from engine.verify.builders import MAX_NODES
from engine.verify.level_one import LEVEL_ONE
from engine.verify.tree import Tree
from space.errors import EngineError


@st.composite
def policies(draw, drafters=("dflash",)):
    """Settings that draft trees, with any level one."""
    drafter = draw(st.sampled_from(drafters))
    return Settings(
        drafter=drafter,
        draft_length=draw(st.integers(1, 12)),
        suffix_depth=draw(st.integers(2, 24)),
        suffix_factor=draw(st.sampled_from([0.5, 1.0, 8.0])),
        min_probability=draw(st.sampled_from([0.0, 0.1, 0.5])),
        suffix_first=draw(st.sampled_from([0, 0, 3])),
        tree=draw(st.sampled_from(["chain", "fixed", "best_first"])),
        tree_nodes=draw(st.integers(2, 64)),
        tree_width=draw(st.integers(1, 16)),
        tree_floor=draw(st.sampled_from([0.0, 0.01, 0.2])),
        tree_branch=draw(st.sampled_from(["none", "ngram", "suffix"])),
        level_one=draw(st.sampled_from([*LEVEL_ONE])) if drafter == "dflash" else "none",
        survival_floor=draw(st.sampled_from([0.0, 0.1, 0.5])),
        agreement_match=draw(st.integers(1, 4)),
        ngram_min=draw(st.integers(1, 3)),
    )


@settings(deadline=None, max_examples=150)
@given(
    policies(("dflash", "suffix")),
    st.lists(st.integers(0, 3), min_size=1, max_size=60).map(tuple),
    st.integers(1, 60),
    st.sets(st.integers(0, 3), max_size=1),
    st.integers(0, 50),
)
def test_any_tree_emits_the_tokens_of_ar(policy, prompt, max_tokens, stop_ids, seed):
    """On a target without rounding: tokens, finish reason and committed cache are AR's; half of the drafts are good."""
    request = Request(prompt=prompt, max_tokens=max_tokens, stop_ids=tuple(stop_ids))
    ar = Decoder(ExactTarget(seed=seed), 256)
    expected = ar.generate(request, Settings())
    answer = (*prompt, *expected.tokens) if seed % 2 else ()
    ours = Decoder(ExactTarget(seed=seed), 256, ScoredModel(vocab=4, answer=answer, seed=seed))
    found = ours.generate(request, policy)
    assert found.tokens == expected.tokens
    assert found.finish == expected.finish
    log = found.log
    assert len(found.tokens) - 1 == len(log.drafted) + sum(log.accepted)
    assert all(nodes >= accepted for nodes, accepted in zip(log.drafted, log.accepted, strict=True))
    committed = slice(0, ar.cache.length)
    assert ours.cache.length >= ar.cache.length
    assert torch.equal(ours.cache.keys[:, :, committed], ar.cache.keys[:, :, committed])
    assert torch.equal(ours.cache.values[:, :, committed], ar.cache.values[:, :, committed])


@settings(deadline=None)
@given(policies(("dflash", "suffix")), st.integers(0, 20))
def test_no_step_is_larger_than_the_envelope(policy, seed):
    prompt = some_prompt(20, seed)
    model = ScoredModel(vocab=4, seed=seed)
    request = Request(prompt=tuple(t % 4 for t in prompt), max_tokens=40)
    found = Decoder(ExactTarget(seed=seed), 256, model).generate(request, policy)
    drafter = speculation.Speculation(policy, make_drafter(policy, model))
    assert max(found.log.drafted, default=0) <= drafter.envelope


class Script(speculation.Speculation):
    """Drafts random trees in which the answer's own path is hidden, deep enough to be worth it."""

    answer, rng = (), random.Random(0)

    def propose(self, limit):
        if limit <= 0:
            return speculation.EMPTY
        start = len(self.seen)
        true = [*self.answer[start : start + min(limit, self.rng.randrange(0, 9))]]
        tokens, parents, at = [], [], -1
        for token in true:
            for _ in range(self.rng.randrange(3)):  # decoys before, beside and below the true path
                tokens.append(self.rng.randrange(200))
                parents.append(self.rng.randrange(-1, len(tokens) - 1) if self.rng.random() < 0.3 else at)
            tokens.append(token)
            parents.append(at)
            at = len(tokens) - 1
        self.true.append(len(true))
        depths = Tree(tokens, parents).depths
        return Tree(tokens, parents).kept([depth <= limit for depth in depths])

    def extend(self, tokens, taps=None):
        self.seen += tokens
        self.injected += [taps] if taps is not None else []


@pytest.fixture
def scripted(monkeypatch, tiny_model, tiny_dflash):
    """A decoder on the tiny model that drafts random trees around an answer; what its drafter saw."""

    def _decode(prompt, max_tokens, seed, tap=True):
        decoder = Decoder(tiny_model, 512, DFlashCheckpoint(tiny_dflash, tiny_model))
        ar = decoder.generate(Request(prompt=prompt, max_tokens=max_tokens), Settings())
        clean = decoder.cache.length, decoder.cache.keys.clone(), decoder.cache.values.clone()
        Script.answer, Script.rng = (*prompt, *ar.tokens), random.Random(seed)
        Script.seen, Script.injected, Script.true = [], [], []
        monkeypatch.setattr("engine.loop.Speculation", Script)
        found = decoder.generate(
            Request(prompt=prompt, max_tokens=max_tokens), Settings(drafter="dflash", draft_length=9)
        )
        return decoder, ar, clean, found

    return _decode


@pytest.mark.parametrize("seed", range(6))
def test_after_trees_the_cache_and_the_taps_are_those_of_ar(scripted, seed):
    """Rows that were committed from anywhere in a tree hold what AR would have written at their positions."""
    prompt = some_prompt(40 + seed, seed)
    decoder, ar, (length, keys, values), found = scripted(prompt, 60, seed)
    assert found.tokens == ar.tokens
    assert sum(found.log.accepted) > 20, "trees were accepted"
    assert any(a < d for a, d in zip(found.log.accepted, found.log.drafted, strict=True))
    assert decoder.cache.length == length
    torch.testing.assert_close(decoder.cache.keys[:, :, :length], keys[:, :, :length], atol=0.1, rtol=0.05)
    torch.testing.assert_close(decoder.cache.values[:, :, :length], values[:, :, :length], atol=0.1, rtol=0.05)
    text = (*prompt, *found.tokens)[:-1]
    decoder.cache.reset()
    _, expected = decoder.model.forward_tapped(torch.tensor(text), torch.arange(len(text)), decoder.cache, taps=(0,))
    injected = torch.cat(Script.injected)
    assert len(injected) == len(text)
    torch.testing.assert_close(injected.float(), expected.float(), atol=0.1, rtol=0.05)


@settings(deadline=None, max_examples=25)
@given(policies(), st.integers(1, 90), st.integers(1, 60), st.integers(0, 10**6))
def test_trees_on_a_real_forward_pass_pass_stock(tiny_model, tiny_dflash, policy, length, max_tokens, seed):
    prompt = some_prompt(length, seed)
    decoder = Decoder(tiny_model, 256, DFlashCheckpoint(tiny_dflash, tiny_model))
    found = decoder.generate(Request(prompt=prompt, max_tokens=max_tokens), policy)
    assert len(found.tokens) == max_tokens
    assert max(Stock(decoder, threads=1).force(prompt, found.tokens).margins) < NOISE


def test_a_full_context_leaves_room_for_a_tree():
    """The last steps of the longest answer still have trees of the largest size."""
    policy = Settings(drafter="dflash", draft_length=8, tree="best_first", tree_nodes=MAX_NODES, tree_width=4)
    prompt = (1, 2, 3, 1)
    expected = Decoder(ExactTarget(), 128).generate(Request(prompt=prompt, max_tokens=124), Settings())
    decoder = Decoder(ExactTarget(), 128, ScoredModel(vocab=4, answer=(*prompt, *expected.tokens)))
    found = decoder.generate(Request(prompt=prompt, max_tokens=124), policy)
    assert found.tokens == expected.tokens
    assert max(found.log.drafted) == MAX_NODES


def test_the_second_pass_stands_behind_the_first_blocks_path(tiny_model, tiny_dflash, monkeypatch):
    """A block of four, and the room that is left behind it."""
    calls, trees = [], []
    lattice, verify = DFlashDrafter.lattice, Decoder._verify

    def spy(self, limit, width, path=()):
        calls.append((limit, list(path)))
        return lattice(self, limit, width, path)

    def watch(self, last, draft, *rest):
        trees.append(list(draft.tokens))
        return verify(self, last, draft, *rest)

    monkeypatch.setattr(DFlashDrafter, "lattice", spy)
    monkeypatch.setattr(Decoder, "_verify", watch)
    decoder = Decoder(tiny_model, 256, DFlashCheckpoint(tiny_dflash, tiny_model))
    policy = Settings(drafter="dflash", draft_length=7, level_one="second_pass")
    found = decoder.generate(Request(prompt=some_prompt(30), max_tokens=9), policy)
    assert found.log.drafted[0] == len(trees[0]) == 7
    assert calls[:2] == [(7, []), (3, trees[0][:4])]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tree": "best_frist"}, "tree 'best_frist' is not there; did you mean 'best_first'"),
        ({"tree": "fixed", "tree_branch": "x"}, "tree_branch 'x' is not there"),
        ({"level_one": "margins"}, "level_one 'margins' is not there; did you mean 'margin'"),
        ({"tree": "fixed", "tree_nodes": 65}, "tree_nodes 65: allowed is a whole number from 1 to 64"),
        ({"drafter": "ngram", "tree": "fixed"}, "needs a drafter that scores candidates; 'ngram' drafts one chain"),
        ({"drafter": "ngram", "level_one": "margin"}, "with level_one 'margin' needs a drafter that scores"),
    ],
)
def test_what_cannot_draft_is_refused(wrong, message):
    decoder = Decoder(ExactTarget(), 64, ScoredModel(vocab=4))
    with pytest.raises(EngineError, match=message):
        decoder.generate(Request(prompt=(1, 2), max_tokens=4), Settings(**{"drafter": "dflash", **wrong}))
