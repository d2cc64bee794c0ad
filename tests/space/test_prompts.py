"""Prompts: the shipped set keeps its promises, splits never overlap, bad lines are named."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.errors import InputError
from space.prompts import Prompt, read_prompts, split_prompts


def test_the_shipped_set_is_forty_prompts_in_five_groups():
    prompts = read_prompts("shipped")
    assert Counter(p.group for p in prompts) == dict.fromkeys(("chat", "code", "maths", "summarise", "extract"), 8)
    assert len({p.messages[-1]["content"] for p in prompts}) == 40
    assert all(p.messages[-1]["role"] == "user" for p in prompts)


def test_copying_tasks_bring_a_passage_to_copy():
    for prompt in read_prompts("shipped"):
        if prompt.group in ("summarise", "extract"):
            assert 80 <= len(prompt.messages[-1]["content"].split()) <= 220, prompt.id


@given(st.integers(1, 4), st.integers(1, 4))
def test_search_and_confirmation_never_share_a_prompt(search, confirm):
    split = split_prompts(read_prompts("shipped"), search, confirm)
    assert not {p.id for p in split.search} & {p.id for p in split.confirm}
    assert (len(split.search), len(split.confirm)) == (5 * search, 5 * confirm)


def test_a_group_that_is_too_small_is_named():
    with pytest.raises(InputError, match="prompt group 'chat' has 8 prompts; search_per_group 6 and .* need 9"):
        split_prompts(read_prompts("shipped"), 6, 3)


def test_benchmark_lines_of_turns_are_read(tmp_path):
    path = tmp_path / "gsm.jsonl"
    path.write_text('{"turns": ["One?", "Two?"]}\n\n')
    message = {"role": "user", "content": "One?"}
    assert read_prompts(str(path)) == (Prompt(id="gsm-1", group="gsm", messages=(message,)),)


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    path = tmp_path / "mine.jsonl"
    record = {"id": "a", "group": "g", "messages": [{"role": "user", "content": "one\u2028two"}]}
    path.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_prompts(str(path))[0].messages[0]["content"] == "one\u2028two"


GOOD = '{"id": "a", "group": "g", "messages": [{"role": "user", "content": "x"}]}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + "\nnot json\n", r"mine\.jsonl line 2: not a prompt"),
        ('{"id": "a"}', "line 1: not a prompt"),
        ('{"turns": []}', "line 1: not a prompt"),
        ('{"id": "a", "group": "g", "messages": []}', "messages is empty"),
        ('{"id": "a", "group": "g", "messages": ["hello"]}', "line 1: not a prompt"),
        ("17", "line 1: not a prompt"),
        (GOOD + "\n" + GOOD, "two prompts have the id 'a'"),
        ("\n\n", "holds no prompt"),
        (b"\xff", "not UTF-8 text at byte 0"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, content, message):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        read_prompts(str(path))
    with pytest.raises(InputError, match="cannot read prompts"):
        read_prompts(str(tmp_path / "absent.jsonl"))
