"""Token forcing at temperature above 0, with the real reference path: honest draws pass, every other way is found."""

import dataclasses

import pytest
import torch

from autotune.forcing import TokenForcing, measure_noise
from autotune.prepared import PreparedPrompt, sampling_of
from engine.base import Request, Sampling, Settings
from engine.loop import Decoder
from engine.protocol import Generated
from engine.stock import Stock
from engine.weights.checkpoint import load_checkpoint
from engine.worker import Worker
from space.deployment import Workload

WORKLOAD = Workload(max_tokens=60, temperature=0.9, top_k=100, top_p=0.95)
SUFFIX = Settings(drafter="suffix", draft_length=6, suffix_factor=8.0, min_probability=0.0)


class InProcess:
    """The stock worker without its process."""

    def __init__(self, model):
        decoder = Decoder(model, 512)
        self._worker = Worker(decoder, Stock(decoder, threads=1))

    def force(self, request, timeout):
        return self._worker.answer(request.model_dump_json())

    noise = force


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    torch.set_num_threads(1)
    return load_checkpoint(tiny_checkpoint)


def prepared(name):
    tokens = tuple(name.encode()) * 3
    return PreparedPrompt(id=name, group="g", tokens=tokens, sampling=sampling_of(name, WORKLOAD))


def answer(model, prompt, settings=SUFFIX, **changes):
    sampling = dataclasses.replace(Sampling(**prompt.sampling.model_dump()), **changes)
    request = Request(prompt=prompt.tokens, max_tokens=60, sampling=sampling)
    return as_generated(Decoder(model, 512).generate(request, settings).tokens)


def as_generated(tokens):
    return Generated(
        tokens=tokens, finish="length", drafted=(0,), accepted=(0,), draft_seconds=(0.0,), verify_seconds=(0.0,)
    )


@pytest.fixture(scope="module")
def forcing(model):
    stock = InProcess(model)
    answers = [(prompt, answer(model, prompt, Settings())) for prompt in map(prepared, ("one", "two", "three"))]
    noise = measure_noise(stock, answers)
    assert noise.compared == (4 + 1) * 3 * 32  # four row counts and a pass of trees, three prompts
    assert noise.margin < 0.05
    assert noise.unit == "of probability"
    return TokenForcing(stock, noise, ())


NAMES = ("alpha", "beta", "gamma", "delta")


def test_speculation_with_the_requests_random_numbers_passes(model, forcing):
    verdicts = [forcing.judge(prompt, answer(model, prompt), 60) for prompt in map(prepared, NAMES)]
    total = forcing.total(verdicts)
    assert total.first_mismatch is None
    assert total.tokens == 240
    assert total.exact >= 236


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.0}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.5}, {"top_p": 1.0, "top_k": 0}, {"seed": 1}],
)
def test_another_way_to_draw_is_found(model, forcing, change):
    """Greedy, colder, narrower, wider, or with other random numbers."""
    verdicts = [forcing.judge(prompt, answer(model, prompt, **change), 60) for prompt in map(prepared, NAMES)]
    assert "of probability below stock's" in forcing.total(verdicts).first_mismatch


def test_accepting_what_is_merely_probable_is_found(model, forcing, monkeypatch):
    """Typical acceptance: a drafted token stays when the target gives it a tenth."""
    import engine.loop

    def typical(draft, choices, probable):
        accepted = 0
        while accepted < len(draft) and (draft[accepted] == choices[accepted] or probable[accepted][draft[accepted]]):
            accepted += 1
        return [*draft[:accepted], choices[accepted]]

    seen = {}
    choose = engine.loop.choose

    def watching(logits, sampling, positions):
        seen["probable"] = (logits / sampling.temperature).softmax(-1) > 0.1
        return choose(logits, sampling, positions)

    monkeypatch.setattr(engine.loop, "choose", watching)
    monkeypatch.setattr(engine.loop, "greedy_chain", lambda draft, choices: typical(draft, choices, seen["probable"]))
    verdicts = [forcing.judge(prompt, answer(model, prompt), 60) for prompt in map(prepared, NAMES)]
    assert forcing.total(verdicts).first_mismatch is not None


def test_greedy_workloads_are_not_sampled():
    assert sampling_of("p", Workload()) is None
    assert sampling_of("p", WORKLOAD).seed != sampling_of("q", WORKLOAD).seed
