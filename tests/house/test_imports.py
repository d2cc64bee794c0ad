"""The one-way street: space <- kernels <- engine <- autotune, space <- archive <- autotune; run.py may import all."""

import ast
import sys

import pytest
from house_sources import ROOMS, imports, sources

MAY_IMPORT = {
    "space": {"space"},
    "kernels": {"space", "kernels"},
    "engine": {"space", "kernels", "engine"},
    "archive": {"space", "archive"},
    "autotune": set(ROOMS),
    "run.py": set(ROOMS),
}
THIRD_PARTY = {
    "space": {"pydantic"},
    "kernels": {"torch", "triton"},
    "engine": {
        "matplotlib",  # the curves of a training run only, an extra
        "torch",
        "triton",
        "numpy",
        "safetensors",
        "tokenizers",
        "transformers",
        "gguf",
        "jinja2",
        "pydantic",
        "structlog",
    },
    "archive": {"pydantic", "structlog"},
    "autotune": {
        "optuna",
        "deap",
        "pydantic",
        "structlog",
        "rich",
        "numpy",
        "matplotlib",  # the plot of gaps only, an extra
    },
    "run.py": set(),
}


def tops(source, **options):
    return {name.partition(".")[0] for name in imports(source.tree, **options)}


@pytest.mark.parametrize("source", sources(), ids=lambda s: str(s.path))
def test_a_file_imports_only_what_its_room_may(source):
    inside = tops(source) & ({*ROOMS, "run", "tests"})
    assert inside <= MAY_IMPORT[source.room], f"{source.path} imports {sorted(inside - MAY_IMPORT[source.room])}"
    outside = tops(source) - set(sys.stdlib_module_names) - inside - {"__future__"}
    allowed = THIRD_PARTY[source.room]
    assert outside <= allowed, f"{source.path} imports {sorted(outside - allowed)}; {source.room} may use {allowed}"


@pytest.mark.parametrize("adapter", ["optuna", "deap"])
def test_a_search_library_has_one_adapter(adapter):
    users = [str(source.path) for source in sources() if adapter in tops(source)]
    assert len(users) <= 1, f"{adapter} is imported by {users}"


def test_rich_and_the_terminal_are_one():
    users = {source.path.parent.as_posix() for source in sources() if "rich" in tops(source)}
    assert users == {"autotune/terminal"}


def test_run_py_starts_without_the_machinery():
    run = next(source for source in sources() if source.room == "run.py")
    assert tops(run, at_start_only=True) & set(ROOMS) == {"space", "autotune"}
    assert "autotune.commands" not in imports(run.tree, at_start_only=True)


@pytest.mark.parametrize(
    ("text", "everything", "at_start"),
    [
        ("import a.b", {"a.b"}, {"a.b"}),
        ("from a import b", {"a", "a.b"}, {"a", "a.b"}),
        ("if x:\n    import a", {"a"}, {"a"}),
        ("def f():\n    import a", {"a"}, set()),
        ("class C:\n    import a", {"a"}, {"a"}),
    ],
)
def test_the_reader_of_imports_reads(text, everything, at_start):
    assert imports(ast.parse(text)) == everything
    assert imports(ast.parse(text), at_start_only=True) == at_start
