"""Replay equals the engine: every step of every policy, nodes and accepted tokens, on the same prompts."""

import random

import pytest
from engine_helpers import ExactTarget, some_prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from scored_drafter import ScoredModel

from autotune.replay.recording import POLICY, Recording, drafting
from autotune.replay.replay import Replay
from engine.base import Request, Settings
from engine.loop import Decoder
from engine.record import record
from space.catalog import cpu_space

SPACE = cpu_space(cores=1, neural=("dflash",))


def genome(seed, drafter=None):
    """A random genome of the whole space; drafters that build trees come more often."""
    rng = random.Random(seed)
    knobs = SPACE.sample(rng)
    knobs["drafter"] = drafter or rng.choice(["none", "ngram", "suffix", "dflash", "dflash", "dflash", "dflash"])
    knobs |= {knob.name: SPACE.sample_value(knob, rng) for knob in SPACE.knobs if knob.name not in knobs}
    if rng.random() < 0.5:
        knobs |= {"level_one": "none", "tree_branch": "none"}
    free = {name: value for name, value in SPACE.complete(knobs).items() if name in POLICY}
    return Settings.from_knobs({**free, "threads": 1, "linear_path": "plain"})


def recorded(make, requests, model, kind="dflash"):
    """A recording, and a function that decodes its requests with the engine."""
    decoder, exact = Decoder(make(), 512), Decoder(make(), 512)
    traces = []
    for index, request in enumerate(requests):
        answer = exact.generate(request, Settings()).tokens
        traces.append(record(decoder, request, Settings(), model(index, (*request.prompt, *answer))))
        assert traces[-1].tokens == answer
    recording = Recording(kind=kind, bound=drafting(Settings()), traces=tuple(traces))

    def _decode(policy):
        logs = []
        for index, trace in enumerate(traces):
            engine = Decoder(make(), 512, model(index, (*trace.request.prompt, *trace.tokens)))
            found = engine.generate(trace.request, policy)
            assert found.tokens == trace.tokens
            logs.append((tuple(found.log.drafted), tuple(found.log.accepted)))
        return logs

    return Replay(recording), _decode


def logs_of(steps):
    return [(log.nodes, log.accepted) for log in steps]


def scored(pairs, vocab, block=5):
    return lambda index, answer: ScoredModel(vocab=vocab, block=block, pairs=pairs, answer=answer, seed=index)


def exact_requests():
    """Answers that end at their limit, at a stop token, and after one token."""
    whole = [Request(prompt=tuple(t % 4 for t in some_prompt(9 + n, n)), max_tokens=m) for n, m in enumerate((30, 20))]
    stopped = [Request(prompt=(1, 2, 3, n), max_tokens=40, stop_ids=(3,)) for n in range(2)]
    return [*whole, *stopped, Request(prompt=(2, 1), max_tokens=1), Request(prompt=(2, 1), max_tokens=2)]


@pytest.fixture(scope="module", params=[True, False], ids=["pairs", "no pairs"])
def on_exact_target(request):
    return recorded(lambda: ExactTarget(seed=4), exact_requests(), scored(request.param, 4))


@pytest.fixture(scope="module")
def on_tiny_model(tiny_model):
    requests = [Request(prompt=some_prompt(20 + 7 * n, n), max_tokens=16, stop_ids=(60, 61)) for n in range(2)]
    return recorded(lambda: tiny_model, requests, scored(True, 258, block=7))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**9))
def test_replay_equals_the_engine(on_exact_target, seed):
    replay, decode = on_exact_target
    policy = genome(seed)
    steps = replay.steps(policy)
    assert logs_of(steps) == decode(policy)
    (figures,) = replay.evaluate([policy])
    assert figures.steps == sum(len(log.nodes) for log in steps)
    assert figures.nodes == sum(sum(log.nodes) for log in steps)
    assert figures.tokens == figures.steps + sum(sum(log.accepted) for log in steps)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**9))
def test_replay_equals_the_engine_on_a_real_forward_pass(on_tiny_model, seed):
    replay, decode = on_tiny_model
    policy = genome(seed)
    assert logs_of(replay.steps(policy)) == decode(policy)
