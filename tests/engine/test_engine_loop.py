"""The step loop: speculation changes when tokens come, never which ones; and the log adds up."""

import random

import pytest
import torch
from engine_helpers import NOISE, ExactTarget, some_prompt
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.loop
from engine.base import Request, Settings
from engine.loop import Decoder
from engine.stock import Stock
from engine.verify.chain import greedy_chain
from space.errors import EngineError


@st.composite
def drafting(draw):
    """Settings that speculate."""
    ngram_max = draw(st.integers(1, 8))
    return Settings(
        drafter=draw(st.sampled_from(["ngram", "suffix"])),
        draft_length=draw(st.integers(1, 32)),
        ngram_max=ngram_max,
        ngram_min=draw(st.integers(1, ngram_max)),
        suffix_depth=draw(st.integers(2, 64)),
        suffix_min_match=draw(st.integers(1, 8)),
        suffix_factor=draw(st.sampled_from([0.5, 1.0, 4.0, 8.0])),
        min_probability=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9])),
        prefill_chunk=draw(st.sampled_from([1, 7, 64, 256])),
    )


def assert_log_adds_up(generation):
    log = generation.log
    assert len(log.drafted) == len(log.accepted) == len(log.draft_seconds) == len(log.verify_seconds)
    assert len(generation.tokens) - 1 == len(log.drafted) + sum(log.accepted)
    assert all(drafted >= accepted >= 0 for drafted, accepted in zip(log.drafted, log.accepted, strict=True))
    assert all(seconds >= 0 for seconds in (*log.draft_seconds, *log.verify_seconds))


@settings(deadline=None)
@given(
    drafting(),
    st.lists(st.integers(0, 3), min_size=1, max_size=90).map(tuple),
    st.integers(1, 80),
    st.sets(st.integers(0, 3), max_size=1),
    st.integers(0, 50),
)
def test_speculation_emits_the_tokens_of_ar(speculative, prompt, max_tokens, stop_ids, seed):
    """On a target without rounding: tokens, finish reason and the cache's committed positions are those of AR."""
    request = Request(prompt=prompt, max_tokens=max_tokens, stop_ids=tuple(stop_ids))
    ar, ours = (Decoder(ExactTarget(seed=seed), 256) for _ in range(2))
    expected, found = ar.generate(request, Settings()), ours.generate(request, speculative)
    assert found.tokens == expected.tokens
    assert found.finish == expected.finish
    assert_log_adds_up(expected)
    assert_log_adds_up(found)
    assert sum(expected.log.drafted) == 0
    assert ours.cache.length >= ar.cache.length  # accepted tokens after a stop token stay until the next request
    committed = slice(0, ar.cache.length)
    assert torch.equal(ours.cache.keys[:, :, committed], ar.cache.keys[:, :, committed])
    assert torch.equal(ours.cache.values[:, :, committed], ar.cache.values[:, :, committed])


@settings(deadline=None, max_examples=25)
@given(drafting(), st.integers(1, 90), st.integers(1, 60), st.integers(0, 10**6), st.booleans())
def test_speculation_on_a_real_forward_pass_passes_stock(tiny_model, speculative, length, max_tokens, seed, stops):
    """Every token is stock's own choice, up to the rounding of this machine's matrix kernels (none on AVX-512)."""
    decoder = Decoder(tiny_model, 256)
    request = Request(prompt=some_prompt(length, seed), max_tokens=max_tokens, stop_ids=(60, 61) if stops else ())
    found = decoder.generate(request, speculative)
    assert_log_adds_up(found)
    assert max(Stock(decoder, threads=1).force(request.prompt, found.tokens).margins) < NOISE
    assert all(token not in request.stop_ids for token in found.tokens[:-1])
    assert (found.finish == "stop") == (found.tokens[-1] in request.stop_ids)
    assert found.finish == "stop" or len(found.tokens) == max_tokens


class Scripted:
    """Drafts what a function of the tokens so far says."""

    def __init__(self, draft):
        self._draft = draft
        self._text = []

    taps = ()

    def extend(self, tokens, taps=None):
        self._text += tokens

    def propose(self, limit):
        return self._draft(self._text)[:limit]


@pytest.fixture
def scripted(monkeypatch):
    """Makes the loop draft as a function says."""

    def _use(draft):
        monkeypatch.setattr(engine.loop, "make_drafter", lambda *_: Scripted(draft))

    return _use


def oracle(prompt, answer, wrong_at=None):
    """Drafts the answer itself, one token of it changed if asked."""

    def _draft(text):
        rest = list(answer[len(text) - len(prompt) :])
        at = None if wrong_at is None else wrong_at - (len(text) - len(prompt))
        if at is not None and 0 <= at < len(rest):
            rest[at] = (rest[at] + 1) % 4
        return rest

    return _draft


PROMPT = (1, 2, 3, 1)


def ar_answer(max_tokens, stop_ids=()):
    request = Request(prompt=PROMPT, max_tokens=max_tokens, stop_ids=stop_ids)
    return Decoder(ExactTarget(), 256).generate(request, Settings())


def speculate(max_tokens, draft_length, stop_ids=()):
    decoder = Decoder(ExactTarget(), 256)
    request = Request(prompt=PROMPT, max_tokens=max_tokens, stop_ids=stop_ids)
    return decoder, decoder.generate(request, Settings(drafter="ngram", draft_length=draft_length))


def test_a_perfect_draft_is_accepted_whole(scripted):
    answer = ar_answer(41)
    scripted(oracle(PROMPT, answer.tokens))
    decoder, found = speculate(41, draft_length=7)
    assert found.tokens == answer.tokens
    assert found.log.drafted == found.log.accepted == [7] * 5
    assert decoder.model.passes == [len(PROMPT), *[8] * 5]


@pytest.mark.parametrize("wrong", [1, 2, 6, 7, 8])
def test_a_wrong_token_ends_its_draft(scripted, wrong):
    answer = ar_answer(9)
    scripted(oracle(PROMPT, answer.tokens, wrong_at=wrong))
    _, found = speculate(9, draft_length=7)
    assert found.tokens == answer.tokens
    assert found.log.accepted[0] == min(wrong - 1, 7)


def test_max_tokens_inside_a_draft(scripted):
    """The last step drafts no more than fits: its bonus token is the last one."""
    answer = ar_answer(60).tokens
    for max_tokens in range(1, 12):
        scripted(oracle(PROMPT, answer))
        decoder, found = speculate(max_tokens, draft_length=32)
        assert found.tokens == answer[:max_tokens]
        assert found.finish == "length"
        assert decoder.cache.length == len(PROMPT) + max_tokens - 1
        assert found.log.drafted == ([max_tokens - 2] if max_tokens > 1 else [])


def test_a_stop_token_inside_a_draft(scripted):
    whole = ar_answer(60).tokens
    stop = next(token for token in whole if token != whole[0])
    expected = ar_answer(60, (stop,))
    assert 1 < len(expected.tokens) < 60
    scripted(oracle(PROMPT, whole))  # drafts on behind the stop token
    _, found = speculate(60, draft_length=32, stop_ids=(stop,))
    assert found.tokens == expected.tokens == whole[: len(expected.tokens)]
    assert found.finish == expected.finish == "stop"
    assert_log_adds_up(found)


def test_one_token_asked():
    for speculative in (Settings(), Settings(drafter="suffix", draft_length=8)):
        decoder = Decoder(ExactTarget(), 64)
        found = decoder.generate(Request(prompt=PROMPT, max_tokens=1), speculative)
        assert found.tokens == ar_answer(1).tokens
        assert found.log.drafted == []
        assert found.finish == "length"


def test_the_first_token_may_be_the_stop():
    first = ar_answer(1).tokens[0]
    found = Decoder(ExactTarget(), 64).generate(Request(prompt=PROMPT, max_tokens=9, stop_ids=(first,)), Settings())
    assert found.tokens == (first,)
    assert found.finish == "stop"


def test_after_many_rejections_the_cache_is_that_of_ar(decoder, scripted):
    request = Request(prompt=some_prompt(50), max_tokens=40)
    ar = decoder.generate(request, Settings())
    length = decoder.cache.length
    keys, values = (store[:, :, :length].clone() for store in (decoder.cache.keys, decoder.cache.values))
    following = decoder.model.logits(decoder.rows(ar.tokens[-1:]))
    rng = random.Random(4)
    scripted(lambda text: [rng.randrange(256) for _ in range(9)])
    found = decoder.generate(request, Settings(drafter="ngram", draft_length=9))
    assert sum(found.log.accepted) < sum(found.log.drafted) / 10
    assert found.tokens == ar.tokens
    assert decoder.cache.length == length
    torch.testing.assert_close(decoder.cache.keys[:, :, :length], keys, atol=0.1, rtol=0.05)
    torch.testing.assert_close(decoder.cache.values[:, :, :length], values, atol=0.1, rtol=0.05)
    torch.testing.assert_close(decoder.model.logits(decoder.rows(ar.tokens[-1:])), following, atol=NOISE, rtol=0)


def test_threads_and_weight_layout_are_those_of_the_settings():
    for threads, path in ((2, "packed"), (1, "plain")):
        target = ExactTarget()
        Decoder(target, 64).generate(Request(prompt=PROMPT, max_tokens=1), Settings(threads=threads, linear_path=path))
        assert torch.get_num_threads() == threads
        assert target.paths == [path]


def test_requests_leave_nothing_behind(decoder):
    request = Request(prompt=some_prompt(30, seed=1), max_tokens=20)
    speculative = Settings(drafter="suffix", draft_length=8)
    first = decoder.generate(request, speculative)
    decoder.generate(Request(prompt=some_prompt(90, seed=2), max_tokens=50), speculative)
    assert decoder.generate(request, speculative).tokens == first.tokens


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ((), 5, "the prompt is empty"),
        ((1,) * 90, 11, "90 prompt tokens and 11 new ones need 101 positions; max_context allows 100"),
        ((1,), 0, "max_tokens 0: ask for at least one token"),
        ((1,), -3, "max_tokens -3: ask for at least one token"),
    ],
)
def test_what_cannot_be_decoded_is_refused(prompt, max_tokens, message):
    with pytest.raises(EngineError, match=message):
        Decoder(ExactTarget(), 100).generate(Request(prompt=prompt, max_tokens=max_tokens), Settings())


def test_a_full_context_is_decoded():
    decoder = Decoder(ExactTarget(), 100)
    found = decoder.generate(Request(prompt=PROMPT, max_tokens=96), Settings(drafter="suffix", draft_length=32))
    assert found.tokens == ar_answer(96).tokens


def test_more_context_than_the_model_has_is_refused(tiny_model):
    with pytest.raises(EngineError, match="max_context 1025: this model has 1024 positions"):
        Decoder(tiny_model, 1025)
    assert Decoder(tiny_model, 1024).generate(Request(prompt=(1,) * 1022, max_tokens=2), Settings()).tokens


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=8), st.data())
def test_a_chain_commits_the_common_prefix_and_the_targets_next_token(draft, data):
    choices = data.draw(st.lists(st.integers(0, 3), min_size=len(draft) + 1, max_size=len(draft) + 1))
    commit = greedy_chain(draft, choices)
    assert 1 <= len(commit) <= len(draft) + 1
    assert commit == choices[: len(commit)]
    assert commit[:-1] == draft[: len(commit) - 1]
    if len(commit) <= len(draft):
        assert draft[len(commit) - 1] != commit[-1]
