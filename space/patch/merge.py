"""Three-way merge of two patches: changes of different lines stand together, changes of the same lines conflict."""

import difflib
from dataclasses import dataclass

from space.errors import PatchError
from space.patch.apply import applied
from space.patch.base import Patch, patch_between
from space.patch.tree import CodeTree, lines_of, text_of


class MergeConflict(PatchError):
    """Both patches change the same lines in different ways."""


@dataclass(frozen=True, slots=True, order=True)
class _Change:
    """Base lines start..end (0-based, end excluded) become `lines`."""

    start: int
    end: int
    lines: tuple[str, ...]

    def touches(self, other: "_Change") -> bool:
        """True when the two share a line, or stand side by side: whoever changed one did not see the other."""
        return self.start <= other.end and other.start <= self.end


def merged(tree: CodeTree, first: Patch, second: Patch) -> Patch:
    """One patch that does what both do. The order does not matter; equal changes count once.

    Raises:
        PatchError: one of them does not apply to the tree.
        MergeConflict: both change the same or neighbouring lines; names the file and the lines of the base.
    """
    ours, theirs = applied(tree, first), applied(tree, second)
    files = {}
    for path in sorted({*first.files, *second.files}):
        base, a, b = (side.files.get(path) for side in (tree, ours, theirs))
        if a == b or b == base:
            chosen = a
        elif a == base:
            chosen = b
        else:
            chosen = _merged_text(path, base, a, b)
        if chosen is not None:
            files[path] = chosen
    return patch_between(tree, tree.changed(files))


def _merged_text(path: str, base: str | None, a: str | None, b: str | None) -> str:
    if base is None:
        raise MergeConflict(f"{path}: both patches add this file, with different content")
    lines = lines_of(base)
    changes = sorted({*_changes(lines, lines_of(a or "")), *_changes(lines, lines_of(b or ""))})
    for one, next_one in zip(changes, changes[1:], strict=False):
        if one.touches(next_one):
            last = max(one.end, next_one.end)
            raise MergeConflict(f"{path}: both patches change lines {one.start + 1} to {last} of the base")
    result: list[str] = []
    done = 0
    for change in changes:
        result += [*lines[done : change.start], *change.lines]
        done = change.end
    return text_of(result + lines[done:])


def _changes(before: list[str], after: list[str]) -> list[_Change]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [
        _Change(start, end, tuple(after[low:high]))
        for kind, start, end, low, high in matcher.get_opcodes()
        if kind != "equal"
    ]
