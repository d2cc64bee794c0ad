"""A candidate's folder: the overlay of its code, and what it may write to. Gone when it is closed."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from autotune.sandbox.base import View
from space.patch import CodeTree

_WRITABLE = ("home", "tmp", "triton", "inductor", "cuda")


class Workspace:
    """A private temporary folder with `code` (the overlay) and `scratch`. Use as a context manager."""

    def __init__(self, tree: CodeTree, read_only: tuple[Path, ...] = ()) -> None:
        """Writes the tree; `read_only` are further files that the candidate may read."""
        self._folder = Path(tempfile.mkdtemp(prefix="specpilot-")).resolve()
        self.view = View(code=self._folder / "code", read_only=read_only, scratch=self._folder / "scratch")
        self.view.code.mkdir()
        tree.write(self.view.code)
        for name in _WRITABLE:
            (self.view.scratch / name).mkdir(parents=True)

    def __enter__(self) -> "Workspace":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Removes the folder. Links are removed, not followed; a folder without rights gets them back first."""
        if self._folder.exists():
            shutil.rmtree(self._folder, onerror=_with_rights)


def _with_rights(function: Callable[[str], object], path: str, error: object) -> None:
    for target in (os.path.dirname(path), path):
        if not os.path.islink(target):
            os.chmod(target, stat.S_IRWXU)
    if function is os.unlink or function is os.rmdir:
        function(path)
    else:
        shutil.rmtree(path)


def bytes_below(folder: Path) -> int:
    """Bytes on disk of everything in a folder; follows no link, counts what vanishes meanwhile as nothing."""
    total = 0
    pending = [str(folder)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
    return total
