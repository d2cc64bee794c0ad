"""Stock's judgement: nothing lies below its own choice, a changed token does, and noise is measured."""

import pytest
import torch
from engine_helpers import some_prompt

from engine.base import Request, Settings
from engine.stock import Stock
from space.errors import EngineError

PROMPT = some_prompt(40, seed=9)


@pytest.fixture
def stock(decoder):
    return Stock(decoder, threads=1)


@pytest.fixture
def answer(decoder):
    return decoder.generate(Request(prompt=PROMPT, max_tokens=30), Settings()).tokens


def test_ar_agrees_with_itself(stock, answer):
    trace = stock.force(PROMPT, answer)
    assert trace.choices == answer
    assert trace.margins == (0.0,) * 30


@pytest.mark.parametrize("at", [0, 1, 15, 29])
def test_a_changed_token_lies_below_stocks_choice(decoder, stock, answer, at):
    changed = (*answer[:at], (answer[at] + 1) % 256, *answer[at + 1 :])
    trace = stock.force(PROMPT, changed)
    assert trace.choices[: at + 1] == answer[: at + 1]
    assert trace.margins[:at] == (0.0,) * at
    logits = decoder.prefill((*PROMPT, *answer[:at]), chunk=256)[0]
    expected = float(logits[answer[at]] - logits[changed[at]])
    assert trace.margins[at] > 0
    assert trace.margins[at] == pytest.approx(expected, abs=0.1)


def test_later_tokens_are_judged_after_the_given_ones(stock, answer):
    """Forcing continues on the tokens that it is given, not on its own choices."""
    changed = ((answer[0] + 1) % 256, *answer[1:])
    trace = stock.force(PROMPT, changed)
    own = stock.force((*PROMPT, changed[0]), changed[1:])
    assert trace.choices[1:] == own.choices
    assert trace.margins[1:] == pytest.approx(own.margins, abs=0.1)


def test_one_token_is_judged(stock, answer):
    assert stock.force(PROMPT, answer[:1]).choices == answer[:1]


@pytest.mark.parametrize("tokens", [(), (3, 258), (-1,)])
def test_tokens_that_do_not_exist_are_refused(stock, tokens):
    with pytest.raises(EngineError, match="give at least one, each from 0 to 257"):
        stock.force(PROMPT, tokens)


def test_self_noise_compares_every_position_at_every_row_count(stock, answer):
    noise = stock.self_noise(PROMPT, answer, (2, 8, 16))
    assert noise.compared == len(noise.shifts) == 4 * len(answer), "chains of each count, and trees"
    assert 0 <= noise.flips <= noise.compared
    assert all(0 <= shift < 0.2 for shift in noise.shifts)


@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_trees_of_the_noise_give_the_logits_of_the_text(stock, answer, count):
    expected = stock._one_row_logits(PROMPT, answer)
    found = stock._logits_in_trees(PROMPT, answer, count, "plain")
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0)
    assert torch.equal(found[0], expected[0])


def test_self_noise_of_one_row_is_none(stock, answer):
    noise = stock.self_noise(PROMPT, answer, (1,))
    assert noise.shifts == (0.0,) * len(answer)
    assert noise.flips == 0


def test_self_noise_sees_noise(stock, answer, monkeypatch):
    """Passes of several rows are disturbed on purpose: shifts are the disturbance, and choices flip."""
    plain = stock._logits

    def _disturbed(prompt, tokens, count, linear_path):
        logits = plain(prompt, tokens, count, linear_path)
        if count > 1:
            logits = logits.clone()
            best = logits.argmax(-1)
            logits[torch.arange(len(logits)), best] -= 100.0
        return logits

    monkeypatch.setattr(stock, "_logits", _disturbed)
    monkeypatch.setattr(stock, "_logits_in_trees", _disturbed)
    noise = stock.self_noise(PROMPT, answer, (2,))
    assert noise.flips == noise.compared == 2 * len(answer)
    assert all(shift == pytest.approx(100.0, abs=0.2) for shift in noise.shifts)


def test_stock_decodes_with_its_own_settings_whatever_ran_before(decoder, stock, answer, monkeypatch):
    paths = []
    monkeypatch.setattr(decoder.model, "use", paths.append)
    torch.set_num_threads(2)
    assert stock.force(PROMPT, answer).choices == answer
    assert torch.get_num_threads() == 1
    assert paths == ["plain"]
