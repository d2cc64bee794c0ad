"""The five benchmarks by name: where their file is, and how a record of the public data set becomes a question.

Files are JSON lines, `NAME.jsonl` in a folder that the user gives; nothing is downloaded. A line is {"turns": [...]},
or a record with the fields under which the data set was published.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from space.errors import InputError, nearest

_BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_SOLVE = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n"

QUESTIONS: Mapping[str, tuple[tuple[str, ...], Callable[[str], str]]] = {
    "gsm8k": (("question",), lambda text: text + _BOXED),
    "math500": (("problem",), lambda text: text + _BOXED),
    "humaneval": (("prompt",), lambda text: f"{_SOLVE}{text}\n```"),
    "mbpp": (("text", "prompt"), lambda text: text),
    "mt-bench": (("turns",), lambda text: text),
}
"""For each benchmark: the fields of its public records that may hold the question, and how the question is asked."""


def plain_name(text: str) -> str:
    """A name without what spellings differ in: `MT_Bench` and `mt-bench` are one, `HumanEval` and `humaneval` too."""
    return "".join(c for c in text.lower() if c.isalnum())


_NAMES: Mapping[str, str] = {plain_name(name): name for name in QUESTIONS}


def benchmark_file(name: str, folder: Path) -> Path:
    """The file of a benchmark in a folder. InputError names what is allowed, or what is absent and what is there."""
    if plain_name(name) not in _NAMES:
        raise InputError(f"unknown benchmark {name!r}{nearest(name, QUESTIONS)} Known: {', '.join(QUESTIONS)}")
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
    except OSError as error:
        raise InputError(f"cannot read the benchmark folder {folder}: {error.strerror}") from error
    found = [path for path in files if plain_name(path.stem) == plain_name(name)]
    if not found:
        there = ", ".join(path.name for path in files) or "no .jsonl file"
        raise InputError(
            f"{folder} has no {_NAMES[plain_name(name)]}.jsonl; it has {there}\n"
            "Put the public data set there as JSON lines; nothing is downloaded."
        )
    return found[0]


def benchmark_path(name: str | None, folder: Path | None) -> Path | None:
    """The file that `--benchmark NAME --benchmark-dir DIR` or `--benchmark FILE.jsonl` means; None without either."""
    if name is None:
        if folder is not None:
            raise InputError("--benchmark-dir DIR needs --benchmark NAME as well")
        return None
    if folder is not None:
        return benchmark_file(name, folder)
    if not name.endswith(".jsonl"):
        raise InputError(
            f"--benchmark {name} needs --benchmark-dir DIR, the folder with its file; or give a FILE.jsonl"
        )
    return Path(name)


def question_of(stem: str, record: Mapping[str, Any]) -> str | None:
    """The question of a public record in the file `stem`.jsonl; None when the file is no benchmark's.

    Raises:
        KeyError: the file is a benchmark's, and the record has none of its fields.
    """
    name = _NAMES.get(plain_name(stem))
    if name is None or "messages" in record:
        return None
    fields, ask = QUESTIONS[name]
    found = next((field for field in fields if isinstance(record.get(field), str)), None)
    if found is None:
        raise KeyError(f"a record of {name} has {' or '.join(fields)}, or turns")
    return ask(str(record[found]))
