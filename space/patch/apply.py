"""Applying a patch: exactly where it was made, or, in a tree that has changed since, where its context stands once."""

from itertools import groupby

from space.errors import PatchError
from space.patch.base import Hunk, Patch
from space.patch.tree import CodeTree, lines_of, text_of


def applied(tree: CodeTree, patch: Patch) -> CodeTree:
    """The tree with the patch applied: all of it, or PatchError that names the hunk and the file.

    In files that are not those of the patch's base, a hunk is placed where its lines stand exactly once. There is no
    fuzz: a change that lands beside its place is worse than one that is refused.
    """
    moved = tree.hash_of(patch.files) != patch.base
    return tree.changed(
        {
            path: _file_applied(path, tree.files.get(path), tuple(hunks), moved)
            for path, hunks in groupby(patch.hunks, key=lambda hunk: hunk.path)
        }
    )


def _file_applied(path: str, text: str | None, hunks: tuple[Hunk, ...], moved: bool) -> str:
    if hunks[0].adds_file:
        if text is not None:
            raise PatchError(f"{path}: the patch adds this file, but it is there already")
        return text_of(list(hunks[0].after))
    if text is None:
        raise PatchError(f"{path}: the patch changes this file, but it is not there")
    lines = lines_of(text)
    result: list[str] = []
    done = 0
    for hunk in hunks:
        at = _place(lines, hunk, done, len(hunks), moved)
        result += [*lines[done:at], *hunk.after]
        done = at + len(hunk.before)
    return text_of(result + lines[done:])


def _place(lines: list[str], hunk: Hunk, earliest: int, count: int, moved: bool) -> int:
    """The 0-based line at which a hunk's old lines stand."""
    size = len(hunk.before)

    def fits(at: int) -> bool:
        return tuple(lines[at : at + size]) == hunk.before

    if not moved and fits(hunk.start):
        return hunk.start
    where = f"{hunk.path}: hunk {hunk.number} of {count} (line {hunk.start + 1})"
    places = [at for at in range(earliest, len(lines) - size + 1) if fits(at)] if size else []
    if len(places) == 1:
        return places[0]
    if places:
        shown = ", ".join(str(at + 1) for at in places[:5])
        raise PatchError(f"{where} no longer applies: its lines stand at lines {shown}; give more context")
    have = set(lines[earliest:])
    missing = next((line for line in hunk.before if line not in have), None)
    why = f"there is no line {missing!r}" if missing is not None else "its lines do not stand together any more"
    raise PatchError(f"{where} no longer applies: {why}")
