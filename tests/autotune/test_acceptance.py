"""bench --acceptance: what is counted, which prompts and drafters take part, and one real run as a table."""

import json
from pathlib import Path

import pytest
from tapped_pair import write_pair

import run
from autotune.acceptance import Contest, by_position, spread_over
from autotune.options import AcceptanceOptions, BenchOptions
from engine.protocol import Generated
from space.deployment import shipped_names
from space.errors import InputError
from space.prompts import read_prompts


def answer(*steps: tuple[int, int]) -> Generated:
    """An answer with these steps of (drafted, accepted)."""
    drafted, accepted = zip(*steps, strict=True)
    count = sum(accepted) + len(steps) + 1
    zeros = (0,) * len(steps)
    return Generated(
        tokens=(0,) * count,
        finish="length",
        drafted=drafted,
        accepted=accepted,
        draft_seconds=zeros,
        verify_seconds=zeros,
    )


def test_acceptance_by_position_counts_steps_that_drafted_so_far():
    answers = [answer((3, 3), (3, 1), (0, 0)), answer((1, 0), (2, 2))]
    assert by_position(answers, 4) == (3 / 4, 2 / 3, 1 / 2, None)


def test_prompts_are_spread_over_a_set():
    shipped = read_prompts("shipped")
    assert [prompt.id for prompt in spread_over(shipped, 5)] == [shipped[i].id for i in (0, 8, 16, 24, 32)]
    assert spread_over(shipped, 1000) == shipped
    assert len({prompt.group for prompt in spread_over(shipped, 20)}) == 5


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("bench --config c", BenchOptions(config=Path("c"))),
        ("bench --acceptance", AcceptanceOptions()),
        (
            "bench --acceptance --benchmark a b --benchmark c --prompts 3 --max-tokens 9 --draft-length 2",
            AcceptanceOptions(
                benchmark=("a", "b", "c"),
                prompts=3,
                max_tokens=9,
                draft_length=2,
            ),
        ),
        ("bench --acceptance --deployment d", AcceptanceOptions(deployment="d")),
        ("bench --acceptance --config c", AcceptanceOptions(config=Path("c"))),
    ],
)
def test_the_command_line(line, options):
    name = "bench --acceptance" if "--acceptance" in line else "bench"
    assert run.read_command(line.split()) == (name, options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench", "--config"),
        ("bench --config c --draft-length 3", "--draft-length"),
        ("bench --deployment d", "--deployment"),
        ("bench --acceptance --config c --deployment d", "not allowed with argument"),
        ("bench --acceptance --prompts 0", "'0' is not a whole number above zero"),
    ],
)
def test_options_that_do_not_go_together_are_refused(line, message):
    with pytest.raises(InputError, match=message):
        run.read_command(line.split())


def test_the_default_deployment_is_shipped_and_has_a_drafter():
    contest = Contest.of(AcceptanceOptions())
    assert contest.deployment.name in shipped_names()
    assert list(contest.drafters) == ["ngram", "suffix", "dflash"]
    assert {knobs["draft_length"] for knobs in contest.drafters.values()} == {7}


def test_a_draft_length_outside_the_space_is_refused():
    with pytest.raises(InputError, match="draft_length"):
        Contest.of(AcceptanceOptions(draft_length=99))


def test_a_real_run(tmp_path, monkeypatch, capsys):
    """The drafter of the pair is always right about its first draft and never about its second."""
    monkeypatch.setenv("SPECPILOT_HOME", str(tmp_path))
    benchmark = tmp_path / "two.jsonl"
    benchmark.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in ("One?", "Two?", "Three?")))
    words = f"bench --acceptance --deployment {write_pair(tmp_path)} --benchmark {benchmark}".split()
    assert run.main([*words, "--prompts", "2", "--max-tokens", "17", "--draft-length", "3"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if "(2)" in line]
    assert [row[0] for row in rows] == ["shipped"] * 3 + ["two"] * 3
    assert [row[2] for row in rows] == ["ngram", "suffix", "eagle3"] * 2
    for row in rows:
        if row[2] == "eagle3":
            assert row[3:] == ["34", "2.00", "100", "0", "0"]
    assert "wired wrongly" not in out
