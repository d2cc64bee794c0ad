"""Prompts of a workload: JSON lines of {id, group, messages}, {turns} or a benchmark's own records.

Search and confirmation never share one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from space.benchmarks import question_of
from space.errors import InputError

SHIPPED = Path(__file__).parent / "shipped_prompts.jsonl"
Message: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request: chat messages of {role, content}. `group` is a kind of task such as chat or code."""

    id: str
    group: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSplit:
    """Disjoint prompts: the search sees `search`; only the final confirmation sees `confirm`."""

    search: tuple[Prompt, ...]
    confirm: tuple[Prompt, ...]


def _parse(line: str, number: int, path: Path) -> Prompt:
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()  # a lone surrogate is no text: no tokenizer takes it
        question = str(record["turns"][0]) if "turns" in record else question_of(path.stem, record)
        if question is not None:
            return Prompt(
                id=f"{path.stem}-{number}", group=path.stem, messages=({"role": "user", "content": question},)
            )
        messages = tuple({"role": str(m["role"]), "content": str(m["content"])} for m in record["messages"])
        if not messages:
            raise ValueError("messages is empty")
        return Prompt(id=str(record["id"]), group=str(record["group"]), messages=messages)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise InputError(
            f"{path} line {number}: not a prompt ({error}); a line is "
            '{"id": ..., "group": ..., "messages": [{"role": "user", "content": ...}]} or {"turns": [...]}'
        ) from error


def read_prompts(source: str) -> tuple[Prompt, ...]:
    """Reads `shipped` or a JSON-lines file; ids must be unique. InputError names file and line."""
    path = SHIPPED if source == "shipped" else Path(source)
    try:
        # Not splitlines(): JSON strings may hold other line separators, such as U+2028.
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(f"cannot read prompts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read prompts {path}: not UTF-8 text at byte {error.start}") from error
    except ValueError as error:
        raise InputError(f"cannot read prompts {source!r}: {error}") from error
    prompts = tuple(_parse(line, i, path) for i, line in enumerate(lines, 1) if line.strip())
    if not prompts:
        raise InputError(f"{path} holds no prompt; give one JSON object a line")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InputError(f"{path}: two prompts have the id {prompt.id!r}")
        seen.add(prompt.id)
    return prompts


def split_prompts(prompts: Sequence[Prompt], search_per_group: int, confirm_per_group: int) -> PromptSplit:
    """Takes, from each group in file order, the first ones for the search and the next ones for confirmation."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.group, []).append(prompt)
    needed = search_per_group + confirm_per_group
    for group, members in groups.items():
        if len(members) < needed:
            raise InputError(
                f"prompt group {group!r} has {len(members)} prompts; search_per_group {search_per_group} "
                f"and confirm_per_group {confirm_per_group} need {needed}"
            )
    return PromptSplit(
        search=tuple(p for members in groups.values() for p in members[:search_per_group]),
        confirm=tuple(p for members in groups.values() for p in members[search_per_group:needed]),
    )
