"""The project's own source files, parsed: what the house rules look at."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("space", "kernels", "engine", "archive", "autotune")


@dataclass(frozen=True)
class Source:
    """One Python file: its place relative to the root, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.path.parts[0]


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the rooms, and run.py."""
    paths = [ROOT / "run.py", *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]
    return tuple(
        Source(path=path.relative_to(ROOT), text=(text := path.read_text(encoding="utf-8")), tree=ast.parse(text))
        for path in paths
    )


def imports(tree: ast.AST, *, at_start_only: bool = False) -> set[str]:
    """Full names of imported modules; with `at_start_only`, those that run when the module is imported."""
    found: set[str] = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used in this project"
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        if at_start_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        pending += ast.iter_child_nodes(node)
    return found
