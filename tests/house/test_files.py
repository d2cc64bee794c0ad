"""Sizes, output, and configuration that nobody reads."""

import ast
import re

import pytest
from house_sources import ROOMS, ROOT, sources

LONGEST_FILE = 500
LONGEST_MAP = 60


def python_files():
    folders = [ROOT / name for name in (*ROOMS, "tests", "benchmarks")]
    return [ROOT / "run.py", *(path for folder in folders for path in sorted(folder.rglob("*.py")))]


def test_no_file_is_longer_than_a_reader():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_the_map_fits_a_screen():
    assert len((ROOT / "docs" / "structure.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_MAP


@pytest.mark.parametrize("source", [s for s in sources() if "terminal" not in s.path.parts], ids=lambda s: str(s.path))
def test_only_the_terminal_prints(source):
    names = {
        node.func.id for node in ast.walk(source.tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "print" not in names
    assert not any(
        isinstance(node, ast.Import) and any(alias.name == "logging" for alias in node.names)
        for node in ast.walk(source.tree)
    ), f"{source.path} uses logging; use structlog"


CONFIGURATION = ("space/deployment.py", "space/knobs.py", "engine/base.py", "autotune/options.py")
"""Where a field is something that a person or the search may choose. Records and results are not configuration."""

NOT_CHOSEN = {"StepLog", "Generation"}


def fields(tree):
    """Fields of dataclasses and pydantic models, as (class, field): annotated names in the body of a class.

    A field that can hold one value only, such as Literal[True], chooses nothing and needs no reader.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name not in NOT_CHOSEN and not is_protocol(node):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not is_fixed(item):
                    yield node.name, item.target.id


def is_fixed(item):
    return re.search(r"Literal\[[^,\]]+\]", ast.unparse(item.annotation)) is not None


def is_protocol(node):
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def read_attributes(trees):
    return {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def unread(declaring, reading):
    read = read_attributes(reading)
    return [f"{owner}.{name}" for tree in declaring for owner, name in fields(tree) if name not in read]


def test_no_configuration_is_ignored():
    declaring = [source.tree for source in sources() if source.path.as_posix() in CONFIGURATION]
    assert len(declaring) == len(CONFIGURATION)
    ignored = unread(declaring, [source.tree for source in sources()])
    assert ignored == [], f"fields that no code reads: {ignored}"


def test_an_ignored_field_would_be_found():
    fields = "used: int; ignored: int; fixed: Literal[True]; choice: Literal['a', 'b']"
    tree = ast.parse(f"class C:\n    {fields}\n\nc = C()\nc.used\nc.ignored = 1\n")
    assert unread([tree], [tree]) == ["C.ignored", "C.choice"]
