"""The step loop at temperature above 0: the tokens of AR sampling, whose distribution is the target's own."""

import math
from collections import Counter

import pytest
import torch
from engine_helpers import DRAW_NOISE, ExactTarget, some_prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_statistics import plausibility

import engine.loop
from engine.base import Request, Sampling, Settings
from engine.drafters.parallel import DFlashCheckpoint
from engine.loop import Decoder
from engine.stock import Stock
from space.errors import EngineError

PROMPT = (1, 2, 3, 1)
SUFFIX = Settings(drafter="suffix", draft_length=8, suffix_factor=8.0, min_probability=0.0)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60).map(tuple),
    st.integers(1, 60),
    st.sampled_from(["ngram", "suffix"]),
    st.integers(1, 12),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.3, 0.5, 1.0]),
        top_k=st.sampled_from([0, 1, 3]),
        top_p=st.sampled_from([0.5, 0.9, 1.0]),
        seed=st.integers(0, 2**64 - 1),
    ),
    st.sets(st.integers(0, 3), max_size=1).map(tuple),
)
def test_speculation_draws_the_tokens_of_ar(prompt, max_tokens, drafter, length, sampling, stop_ids):
    request = Request(prompt=prompt, max_tokens=max_tokens, stop_ids=stop_ids, sampling=sampling)
    drafting = Settings(drafter=drafter, draft_length=length, ngram_min=1, min_probability=0.0)
    ar = Decoder(ExactTarget(), 256).generate(request, Settings())
    found = Decoder(ExactTarget(), 256).generate(request, drafting)
    assert (found.tokens, found.finish) == (ar.tokens, ar.finish)


def test_drafts_are_accepted_and_rejected():
    """So that the property above says something."""
    log = Decoder(ExactTarget(), 512).generate(
        Request(prompt=PROMPT, max_tokens=200, sampling=Sampling(temperature=0.3, seed=3)), SUFFIX
    )
    assert 20 < sum(log.log.accepted) < sum(log.log.drafted) - 20


def true_texts(sampling, length):
    """The probability of every text that the exact target may say, from its own definition."""
    target, texts = ExactTarget(), {(): 1.0}
    other = math.exp(-1 / sampling.temperature)
    for _ in range(length):
        grown = {}
        for text, probability in texts.items():
            likely = target._next([*PROMPT, *text])
            for token in range(4):
                grown[*text, token] = probability * (1.0 if token == likely else other) / (1 + 3 * other)
        texts = grown
    return texts


def said_texts(sampling_of, settings, trials=1500, length=3):
    decoder = Decoder(ExactTarget(), 128)
    requests = (Request(prompt=PROMPT, max_tokens=length, sampling=sampling_of(seed)) for seed in range(trials))
    return Counter(decoder.generate(request, settings).tokens for request in requests)


def test_texts_have_the_targets_distribution(monkeypatch):
    sampling = Sampling(temperature=0.8)
    expected = true_texts(sampling, 3)

    def seeded(seed):
        return Sampling(temperature=0.8, seed=seed)

    for decoding in (Settings(), SUFFIX):
        assert plausibility(said_texts(seeded, decoding), expected) > 1e-3
    monkeypatch.setattr(engine.loop, "choose", careless)
    assert plausibility(said_texts(seeded, SUFFIX), expected) < 1e-3


def careless(logits, sampling, positions):
    """Broken: the first token that anything speaks for (typical acceptance of a kind) instead of a draw."""
    rows = (logits / sampling.temperature).softmax(-1)
    rng = torch.Generator().manual_seed(sampling.seed * 1000 + positions[0])
    rows = rows.masked_fill(rows < 0.2, 1e-9)
    return torch.multinomial(rows, 1, generator=rng)[:, 0].tolist()


@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_a_real_forward_pass_draws_what_stock_draws(tiny_model, tiny_dflash, temperature):
    """Up to the rounding of this machine's matrix kernels, which moves the borders between tokens a little."""
    checkpoint, stock = DFlashCheckpoint(tiny_dflash, tiny_model), Stock(Decoder(tiny_model, 256), threads=1)
    choices = 0
    for seed in range(6):
        sampling = Sampling(temperature=temperature, top_k=50, top_p=0.9, seed=seed)
        request = Request(prompt=some_prompt(20, seed), max_tokens=40, sampling=sampling)
        drafting = Settings(drafter="dflash", draft_length=4) if seed % 2 else SUFFIX
        found = Decoder(tiny_model, 256, checkpoint).generate(request, drafting)
        trace = stock.force(request.prompt, found.tokens, sampling)
        assert max(trace.margins) < DRAW_NOISE
        choices += sum(a == b for a, b in zip(trace.choices, found.tokens, strict=True))
    assert choices > 6 * 40 * 0.95


@pytest.mark.parametrize("position", [0, 7, 29])
def test_stock_finds_a_token_that_was_not_drawn(tiny_model, position):
    sampling = Sampling(temperature=1.0, seed=5)
    request = Request(prompt=some_prompt(20), max_tokens=30, sampling=sampling)
    tokens = list(Decoder(tiny_model, 256).generate(request, SUFFIX).tokens)
    tokens[position] = (tokens[position] + 100) % 256
    trace = Stock(Decoder(tiny_model, 256), threads=1).force(request.prompt, tokens, sampling)
    assert trace.margins[position] > DRAW_NOISE
    assert trace.choices[position] != tokens[position]
    other = Sampling(temperature=1.0, seed=6)
    wrong_seed = Stock(Decoder(tiny_model, 256), threads=1).force(request.prompt, tokens, other)
    assert sum(margin > DRAW_NOISE for margin in wrong_seed.margins) > 20


def test_stock_refuses_what_is_no_token(tiny_model):
    with pytest.raises(EngineError, match=r"cannot judge tokens \[258\]"):
        Stock(Decoder(tiny_model, 256), threads=1).force((1,), (3, 258), Sampling(temperature=1.0))
