"""A patch: a unified diff in canonical form, the hash of the files that it was made from, and its content address."""

import difflib
import re
from dataclasses import dataclass

from space.canonical import content_hash
from space.errors import PatchError
from space.patch.scope import forbidden
from space.patch.tree import CodeTree, lines_of

MOST_BYTES = 64 * 1024
"""A diff may be this long: a reader should be able to review what wins."""
MOST_FILES = 12
_CONTEXT = 3
_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ABSENT = "/dev/null"


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change of one file. `number` counts from 1 within the file; `start` is the 0-based first line in the base."""

    path: str
    number: int
    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    adds_file: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """An edit of files under engine/ or kernels/.

    base: content hash of the touched files as they were.
    diff: unified diff, files in order of path, three lines of context, no time stamps.
    """

    base: str
    diff: str

    @property
    def id(self) -> str:
        """Content address, 12 hexadecimal digits."""
        return content_hash({"base": self.base, "diff": self.diff})

    @property
    def files(self) -> tuple[str, ...]:
        """The touched files, in order of path."""
        return tuple(dict.fromkeys(hunk.path for hunk in self.hunks))

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """The changes. PatchError for a diff that is not in the form that `patch_between` writes."""
        return tuple(_Reader(self.diff).hunks())


def patch_between(before: CodeTree, after: CodeTree) -> Patch:
    """The patch that leads from one tree to another. PatchError: nothing differs, it is too large, or off limits."""
    paths = tuple(sorted(p for p in {*before.files, *after.files} if before.files.get(p) != after.files.get(p)))
    if not paths:
        raise PatchError("the edits change nothing; a patch must change at least one line")
    for path in paths:
        _refuse(path, after)
    if len(paths) > MOST_FILES:
        raise PatchError(f"the patch touches {len(paths)} files; at most {MOST_FILES} are allowed: split it")
    diff = "".join(_file_diff(path, before.files.get(path), after.files[path]) for path in paths)
    if len(diff.encode()) > MOST_BYTES:
        raise PatchError(f"the patch is {len(diff.encode())} bytes of diff; at most {MOST_BYTES} are allowed: split it")
    return Patch(base=before.hash_of(paths), diff=diff)


def _refuse(path: str, after: CodeTree) -> None:
    reason = forbidden(path)
    if reason is not None:
        raise PatchError(f"{path}: {reason}")
    if path not in after.files:
        raise PatchError(f"{path}: a patch may not delete a file; make it unused instead")
    if "\0" in after.files[path] or "\r" in after.files[path]:
        raise PatchError(f"{path}: NUL and carriage-return characters are not allowed in source text")


def _file_diff(path: str, before: str | None, after: str) -> str:
    name = f"a/{path}" if before is not None else _ABSENT
    if before is None and not after:
        raise PatchError(f"{path}: an empty file cannot be told from an absent one in a diff; give it a docstring")
    lines = difflib.unified_diff(lines_of(before or ""), lines_of(after), name, f"b/{path}", n=_CONTEXT, lineterm="")
    return "".join(line + "\n" for line in lines)


class _Reader:
    """Reads a canonical diff, line by line."""

    def __init__(self, diff: str) -> None:
        self._lines = lines_of(diff)
        self._at = 0

    def hunks(self) -> list[Hunk]:
        found: list[Hunk] = []
        while self._at < len(self._lines):
            old, new = self._take("--- "), self._take("+++ b/")
            if old not in (_ABSENT, f"a/{new}"):
                raise self._broken(f"the file {old} becomes {new}; a patch may not rename")
            reason = forbidden(new)
            if reason is not None:
                raise PatchError(f"{new}: {reason}")
            number = 0
            while self._at < len(self._lines) and self._lines[self._at].startswith("@@"):
                number += 1
                found.append(self._hunk(new, number, adds=old == _ABSENT))
            if not number:
                raise self._broken(f"no hunk follows the header of {new}")
        return found

    def _hunk(self, path: str, number: int, *, adds: bool) -> Hunk:
        match = _HEADER.fullmatch(self._lines[self._at])
        if match is None:
            raise self._broken("not a hunk header")
        self._at += 1
        old_count, new_count = (int(count) if count is not None else 1 for count in match.group(2, 4))
        before: list[str] = []
        after: list[str] = []
        while len(before) < old_count or len(after) < new_count:
            line = self._lines[self._at] if self._at < len(self._lines) else ""
            if line[:1] not in (" ", "-", "+") or not line:
                raise self._broken(f"hunk {number} of {path} ends too early")
            before += [line[1:]] if line[0] != "+" else []
            after += [line[1:]] if line[0] != "-" else []
            self._at += 1
        if (len(before), len(after)) != (old_count, new_count):
            raise self._broken(f"hunk {number} of {path} has other lines than its header says")
        start = int(match[1]) - (1 if old_count else 0)
        return Hunk(path=path, number=number, start=start, before=tuple(before), after=tuple(after), adds_file=adds)

    def _take(self, prefix: str) -> str:
        line = self._lines[self._at] if self._at < len(self._lines) else ""
        if not line.startswith(prefix):
            raise self._broken(f"expected a line that begins with {prefix!r}")
        self._at += 1
        return line[len(prefix) :]

    def _broken(self, why: str) -> PatchError:
        return PatchError(f"line {self._at + 1} of the diff: {why}")
