"""Benchmarks by name: files are found whatever their spelling, public records become questions, the absent is named."""

import json
from pathlib import Path

import pytest

from space.benchmarks import QUESTIONS, benchmark_file, benchmark_path
from space.errors import InputError
from space.prompts import read_prompts


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("gsm8k", "gsm8k.jsonl"),
        ("humaneval", "HumanEval.jsonl"),
        ("mt-bench", "mt_bench.jsonl"),
        ("MBPP", "mbpp.jsonl"),
    ],
)
def test_a_benchmark_is_found_by_its_name(tmp_path, name, file):
    write(tmp_path / file, {"turns": ["x"]})
    write(tmp_path / "other.jsonl", {"turns": ["y"]})
    assert benchmark_file(name, tmp_path) == tmp_path / file


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"unknown benchmark 'gsm8'; did you mean 'gsm8k'\? Known: gsm8k, math500"):
        benchmark_file("gsm8", tmp_path)
    with pytest.raises(
        InputError, match=r"has no math500\.jsonl; it has no \.jsonl file\nPut the public data set there"
    ):
        benchmark_file("math500", tmp_path)
    write(tmp_path / "gsm8k.jsonl", {"turns": ["x"]})
    with pytest.raises(InputError, match=r"has no math500\.jsonl; it has gsm8k\.jsonl"):
        benchmark_file("math500", tmp_path)
    with pytest.raises(InputError, match="cannot read the benchmark folder .*absent: No such file"):
        benchmark_file("mbpp", tmp_path / "absent")


@pytest.mark.parametrize(
    ("stem", "record", "question"),
    [
        ("gsm8k", {"question": "How many?", "answer": "#### 4"}, "How many?\nPlease reason step by step"),
        ("math500", {"problem": "Solve $x$.", "solution": "1"}, "Solve $x$.\nPlease reason step by step"),
        ("HumanEval", {"task_id": "H/0", "prompt": "def f():", "test": "assert"}, "```python\ndef f():\n```"),
        ("mbpp", {"task_id": 1, "text": "Write a function.", "code": "x"}, "Write a function."),
        ("mbpp", {"prompt": "Write one.", "code": "x"}, "Write one."),
        ("mt_bench", {"question_id": 81, "turns": ["First.", "Second."]}, "First."),
    ],
)
def test_public_records_become_questions(tmp_path, stem, record, question):
    [prompt] = read_prompts(str(write(tmp_path / f"{stem}.jsonl", record)))
    assert prompt.id == f"{stem}-1"
    assert prompt.group == stem
    assert question in prompt.messages[0]["content"]
    assert "4" not in prompt.messages[0]["content"], "answers are never shown"


def test_turns_are_asked_as_they_are(tmp_path):
    [prompt] = read_prompts(str(write(tmp_path / "gsm8k.jsonl", {"turns": ["Asked already."]})))
    assert prompt.messages[0]["content"] == "Asked already."


def test_a_record_without_its_field_is_refused(tmp_path):
    path = write(tmp_path / "gsm8k.jsonl", {"question": "ok"}, {"answer": "4"})
    with pytest.raises(
        InputError, match=r"gsm8k\.jsonl line 2: not a prompt .*a record of gsm8k has question, or turns"
    ):
        read_prompts(str(path))
    with pytest.raises(InputError, match=r"mine\.jsonl line 1: not a prompt"):
        read_prompts(str(write(Path(tmp_path) / "mine.jsonl", {"question": "no benchmark's file"})))


def test_a_name_needs_its_folder(tmp_path):
    path = write(tmp_path / "mbpp.jsonl", {"turns": ["x"]})
    assert benchmark_path(None, None) is None
    assert benchmark_path("mbpp", tmp_path) == benchmark_path(str(path), None) == path
    with pytest.raises(InputError, match="--benchmark mbpp needs --benchmark-dir DIR"):
        benchmark_path("mbpp", None)
    with pytest.raises(InputError, match="--benchmark-dir DIR needs --benchmark NAME"):
        benchmark_path(None, tmp_path)


def test_five_are_known():
    assert list(QUESTIONS) == ["gsm8k", "math500", "humaneval", "mbpp", "mt-bench"]
