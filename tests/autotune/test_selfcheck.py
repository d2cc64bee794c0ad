"""A drafter that is wired against its training is noticed before anything is measured; one that is not, is not."""

import json

import pytest
from tapped_pair import shift_taps, write_pair

from autotune.selfcheck import SelfCheck, recorded_tau, self_check
from autotune.session import Session, built_in_prompts
from engine.protocol import Generated
from engine.tokenizer import ChatTokenizer
from space.catalog import cpu_space
from space.deployment import read_deployment

SPACE = cpu_space(1, neural=("dflash",))


def answers(tokens: int, steps: int) -> list[Generated]:
    """One answer of so many tokens in so many steps."""
    zeros = (0,) * steps
    log = {"drafted": zeros, "accepted": zeros, "draft_seconds": zeros, "verify_seconds": zeros}
    return [Generated(tokens=(5,) * tokens, finish="length", **log)]


def said(pair) -> list[str]:
    lines: list[str] = []
    with Session(read_deployment(pair), pair.parent, lines.append) as session:
        session.check_drafter()
    return lines


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("pair"))


def test_a_drafter_that_reads_its_own_layer_is_passed_over_in_silence(pair):
    assert said(pair) == []


def test_a_drafter_that_reads_the_layer_beside_it_is_warned_of(pair):
    shift_taps(pair.parent, 1)
    try:
        (line,) = said(pair)
    finally:
        shift_taps(pair.parent, 0)
    assert line.startswith("the eagle3 drafter behaves as if it were wired wrongly: tau 1.")
    assert "at least 1." in line
    assert "likely: target tap ids off by one" in line


def test_a_worker_that_fails_is_told_of(pair):
    weights = pair.parent / "drafter" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    try:
        (line,) = said(pair)
    finally:
        weights.write_bytes(whole)
    assert line.startswith("the drafter's self-check failed: ")
    assert "damaged" in line


@pytest.mark.parametrize(("tokens", "passes"), [(34, True), (33, False)])
def test_a_record_decides_before_ngram(tmp_path, tokens, passes):
    record = {"evaluation": {"chat": {"tau": 5.6}, "code": {"tau": 6.0}}}
    (tmp_path / "training.json").write_text(json.dumps(record))
    check = self_check(lambda knobs, count: answers(tokens + 1, 10), SPACE, "dflash", tmp_path)
    assert check.passed is passes
    assert "at least 3.36 is expected (0.6 x the lowest in its training record)" in check.warning()


@pytest.mark.parametrize(("tokens", "passes"), [(13, True), (12, False)])
def test_the_comparison_with_ngram(tmp_path, tokens, passes):
    """n-gram commits 11 - 1 tokens in 10 steps; the drafter must commit 1.2 times as many."""
    asked = []

    def ask(knobs, count):
        asked.append((knobs["drafter"], knobs["draft_length"], count))
        return answers(tokens if knobs["drafter"] == "dflash" else 11, 10)

    check = self_check(ask, SPACE, "dflash", tmp_path)
    assert asked == [("dflash", 7, 32), ("ngram", 7, 32)]
    assert check.passed is passes
    assert check.least == pytest.approx(1.2)


def test_a_warning_names_causes_of_its_kind():
    def causes(kind: str) -> str:
        return SelfCheck(kind=kind, tau=1.0, least=2.0, origin="x").warning().partition("likely: ")[2]

    assert causes("dflash") == "rows shifted by one, a wrong mask row, target tap ids off by one, another RoPE order"
    assert "mask" not in causes("eagle3")
    assert "norm_output" in causes("eagle3")
    assert "tap" not in causes("small")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"evaluation": {"a": {"tau": 3.5}, "b": {"tau": 2.5, "ngram": 1.1}}}', 2.5),
        ('{"evaluation_first_20": {"a": {"tau": 3.5}}, "evaluation_spaced": {"a": {"tau": 3.25}}, "seed": 0}', 3.25),
        ('{"evaluation": {}}', None),
        ('{"evaluation": [1], "loss": 2}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_what_a_record_says(tmp_path, text, expected):
    assert recorded_tau(tmp_path) is None
    (tmp_path / "training.json").write_text(text)
    assert recorded_tau(tmp_path) == expected


def test_built_in_prompts_are_short_and_of_several_kinds(pair):
    tokenizer = ChatTokenizer(pair.parent / "target")
    prompts = built_in_prompts(tokenizer, 1000)
    assert len({prompt.group for prompt in prompts}) == len(prompts) == 3
    assert max(len(prompt.tokens) for prompt in prompts) < 400
    cut = built_in_prompts(tokenizer, 20)
    assert [prompt.tokens for prompt in cut] == [prompt.tokens[-20:] for prompt in prompts]
