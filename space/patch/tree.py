"""The source text of a candidate: what patches are made from and applied to."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from space.canonical import content_hash
from space.errors import PatchError

_ROOMS = ("engine", "kernels", "space")
_SUFFIXES = (".py", ".cu", ".cuh", ".toml", ".jsonl")
_NOT_RUN = ("engine/drafters/train/",)


@dataclass(frozen=True, slots=True)
class CodeTree:
    """Text files by path from the root, as `engine/loop.py`. Every text ends with a newline or is empty."""

    files: Mapping[str, str]

    @classmethod
    def read(cls, root: Path) -> "CodeTree":
        """Reads engine/, kernels/ and space/ below a root: what a candidate's process imports.

        PatchError for a symbolic link: a copy of it could lead out of the copy.
        """
        files = {}
        for path in sorted(path for room in _ROOMS for path in (root / room).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_symlink():
                raise PatchError(f"{name} is a symbolic link; a candidate's code is made of plain files only")
            if path.is_file() and path.suffix in _SUFFIXES and not name.startswith(_NOT_RUN):
                text = path.read_text(encoding="utf-8")
                files[name] = text if text.endswith("\n") or not text else text + "\n"
        return cls(files)

    def changed(self, files: Mapping[str, str]) -> "CodeTree":
        """The tree with some files replaced or added."""
        return CodeTree({**self.files, **files})

    def hash_of(self, paths: tuple[str, ...]) -> str:
        """Content hash of some files; one that is not there counts as null."""
        return content_hash({path: self.files.get(path) for path in paths})

    def write(self, folder: Path) -> None:
        """Writes the tree as read-only plain files into a folder that is empty or absent; never a link."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8", newline="") as file:
                file.write(text)
            path.chmod(0o444)


def lines_of(text: str) -> list[str]:
    """The lines of a text without their ends. Only a newline ends a line: str.splitlines knows a dozen others."""
    return text.removesuffix("\n").split("\n") if text else []


def text_of(lines: list[str]) -> str:
    """The inverse of lines_of."""
    return "".join(line + "\n" for line in lines)


def syntax_error(tree: CodeTree, paths: tuple[str, ...]) -> str | None:
    """The first of these Python files that cannot be parsed, with line and reason; None when all can."""
    for path in paths:
        if path.endswith(".py"):
            try:
                ast.parse(tree.files[path], filename=path)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last three: absurd nesting
                line = getattr(error, "lineno", None)
                return f"{path}{f', line {line}' if line else ''}: {getattr(error, 'msg', None) or error}"
    return None
