"""Edits in search/replace form: how a person or a model writes a change without counting lines.

    engine/verify/chain.py
    <<<<<<< SEARCH
    lines that stand in the file exactly once
    =======
    lines to stand there instead
    >>>>>>> REPLACE

An empty search part adds a file. The form is the one that the coding assistant aider made common.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from space.errors import PatchError
from space.patch.scope import forbidden
from space.patch.tree import CodeTree, lines_of, text_of

_OPEN, _MIDDLE, _CLOSE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the lines `search`, which stand exactly once in the file, by the lines `replace`."""

    path: str
    search: tuple[str, ...]
    replace: tuple[str, ...]


def read_edits(text: str) -> tuple[Edit, ...]:
    """Finds the blocks in a text; whatever stands between them is prose. PatchError names a block that is broken."""
    lines = lines_of(text.replace("\r\n", "\n"))
    edits: list[Edit] = []
    at = 0
    while at < len(lines):
        if lines[at].rstrip() != _OPEN:
            at += 1
            continue
        number = len(edits) + 1
        middle = _find(lines, at + 1, _MIDDLE, number)
        close = _find(lines, middle + 1, _CLOSE, number)
        path = _path_before(lines, at, number)
        edits.append(Edit(path, tuple(lines[at + 1 : middle]), tuple(lines[middle + 1 : close])))
        at = close + 1
    if not edits:
        form = ", ".join(("the path", _OPEN, "the old lines", _MIDDLE, "the new lines", _CLOSE))
        raise PatchError(f"no edit was found; write, each on its own line: {form}")
    return tuple(edits)


def _find(lines: list[str], start: int, marker: str, number: int) -> int:
    for at in range(start, len(lines)):
        if lines[at].rstrip() == marker:
            return at
        if lines[at].rstrip() == _OPEN:
            break
    raise PatchError(f"block {number} has no line {marker!r}")


def _path_before(lines: list[str], at: int, number: int) -> str:
    """The last line before the block that is neither empty nor a code fence."""
    for line in reversed(lines[max(0, at - 3) : at]):
        word = line.strip().strip("`*").strip()
        if word and not line.strip().startswith("```"):
            if " " not in word:
                return word
            break
    raise PatchError(f"block {number} does not say which file: write the path alone on the line before {_OPEN!r}")


def edited(tree: CodeTree, edits: Sequence[Edit]) -> CodeTree:
    """The tree after the edits, in order. PatchError names the block, the file and what does not fit."""
    for number, edit in enumerate(edits, 1):
        where = f"block {number}, {edit.path}"
        reason = forbidden(edit.path)
        if reason is not None:
            raise PatchError(f"{where}: {reason}")
        tree = tree.changed({edit.path: _edited_text(tree.files.get(edit.path), edit, where)})
    return tree


def _edited_text(text: str | None, edit: Edit, where: str) -> str:
    if text is None:
        if any(line.strip() for line in edit.search):
            raise PatchError(f"{where}: there is no such file; leave the search part empty to add it")
        return text_of(list(edit.replace))
    if not any(line.strip() for line in edit.search):
        raise PatchError(f"{where}: the file is there already; name the lines to replace")
    lines, size = lines_of(text), len(edit.search)
    places = [at for at in range(len(lines) - size + 1) if tuple(lines[at : at + size]) == edit.search]
    if len(places) > 1:
        shown = ", ".join(str(at + 1) for at in places[:5])
        raise PatchError(f"{where}: the search lines stand {len(places)} times (lines {shown}); give more of them")
    if not places:
        raise PatchError(f"{where}: the search lines do not stand in the file{_closest(lines, edit.search)}")
    at = places[0]
    return text_of([*lines[:at], *edit.replace, *lines[at + size :]])


def _closest(lines: list[str], search: Sequence[str]) -> str:
    """Ends the complaint with the first search line that is not in the file, and what is there instead."""
    have = set(lines)
    missing = next((line for line in search if line not in have), None)
    if missing is None:
        return ", though each of them does somewhere; copy them together"
    near = difflib.get_close_matches(missing, lines, n=1, cutoff=0.6)
    return f": there is no line {missing!r}" + (f", but {near[0]!r}" if near else "")
