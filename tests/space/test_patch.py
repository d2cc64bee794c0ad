"""Patches: what leads from one tree to another, where it may lead, and how it says that it no longer fits."""

import os
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from patch_trees import CHAIN, LOOP, TREE, replaced, texts, trees

from space.canonical import content_hash
from space.catalog import cpu_space
from space.errors import PatchError
from space.genome import Genome
from space.patch import (
    MOST_BYTES,
    MOST_FILES,
    OFF_LIMITS,
    CodeTree,
    MergeConflict,
    Patch,
    applied,
    forbidden,
    merged,
    patch_between,
)

ROOT = Path(__file__).parents[2]


def change(old: str, new: str, path: str = LOOP, tree: CodeTree = TREE) -> Patch:
    return patch_between(tree, replaced(tree, path, old, new))


@given(trees, trees)
def test_a_patch_leads_from_one_tree_to_the_other(before, after):
    after = before.changed(after.files)
    assume(after.files != before.files)
    assume(all(after.files[path] or path in before.files for path in after.files))  # an empty new file is refused
    patch = patch_between(before, after)
    assert applied(before, patch).files == after.files
    assert patch_between(before, applied(before, patch)) == patch


def test_the_diff_is_what_people_know():
    assert change("line 20\n", "line twenty\nand more\n").diff == (
        "--- a/engine/loop.py\n+++ b/engine/loop.py\n@@ -18,7 +18,8 @@\n line 17\n line 18\n line 19\n-line 20\n"
        "+line twenty\n+and more\n line 21\n line 22\n line 23\n"
    )


def test_the_address_is_the_content():
    a, b = change("line 3\n", "x\n"), change("line 3\n", "x\n")
    assert a.id == b.id == content_hash({"base": a.base, "diff": a.diff})
    assert a.files == (LOOP,)
    other_base = patch_between(
        replaced(TREE, LOOP, "line 30\n", "y\n"), replaced(TREE, LOOP, "line 30\n", "y\n").changed({CHAIN: "x\n"})
    )
    assert other_base.base == change(TREE.files[CHAIN], "x\n", CHAIN).base, "only touched files count"
    assert len({a.id, change("line 3\n", "y\n").id, change("line 4\n", "x\n").id}) == 3


def test_a_changed_file_still_takes_a_patch_where_its_lines_stand_once():
    patch = change("line 20\n", "new\n")
    later = replaced(TREE, LOOP, "line 2\n", "one\ntwo\nthree\n")
    assert applied(later, patch).files[LOOP] == later.files[LOOP].replace("line 20\n", "new\n")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            replaced(TREE, LOOP, "line 33\n", "other\n"),
            r"loop\.py: hunk 2 of 2 \(line 31\) .*there is no line 'line 33'",
        ),
        (replaced(TREE, LOOP, "line 2\n", "line 2\n\n"), r"hunk 1 of 2 \(line 1\) .*do not stand together any more"),
        (TREE.changed({LOOP: "q\n" + TREE.files[LOOP] * 2}), r"hunk 1 of 2 .*stand at lines 2, 42; give more context"),
        (CodeTree({}), r"loop\.py: the patch changes this file, but it is not there"),
    ],
)
def test_a_patch_that_no_longer_applies_names_hunk_and_file(tree, message):
    patch = patch_between(TREE, replaced(replaced(TREE, LOOP, "line 3\n", "x\n"), LOOP, "line 33\n", "y\n"))
    with pytest.raises(PatchError, match=message):
        applied(tree, patch)


def test_a_file_that_was_added_meanwhile_is_not_overwritten():
    patch = patch_between(TREE, TREE.changed({"engine/new.py": "x = 1\n"}))
    assert patch.diff.startswith("--- /dev/null\n+++ b/engine/new.py\n@@ -0,0 +1 @@\n")
    with pytest.raises(PatchError, match=r"engine/new\.py: the patch adds this file, but it is there already"):
        applied(TREE.changed({"engine/new.py": "x = 2\n"}), patch)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (TREE, "change nothing"),
        (CodeTree({LOOP: TREE.files[LOOP], CHAIN: TREE.files[CHAIN]}), r"engine/stock\.py is off limits: it judges"),
        (CodeTree({p: t for p, t in TREE.files.items() if p != CHAIN}), "may not delete a file"),
        (TREE.changed({LOOP: "a\0b\n"}), "NUL"),
        (TREE.changed({LOOP: "a\rb\n"}), "carriage-return"),
        (TREE.changed({"engine/new.py": ""}), "give it a docstring"),
        (TREE.changed({LOOP: "x" * MOST_BYTES}), f"at most {MOST_BYTES} are allowed: split it"),
        (
            TREE.changed({f"engine/f{n}.py": "x\n" for n in range(MOST_FILES + 1)}),
            f"touches 13 files; at most {MOST_FILES}",
        ),
        (TREE.changed({"run.py": "x\n"}), "front door"),
    ],
)
def test_what_is_no_patch(after, message):
    with pytest.raises(PatchError, match=message):
        patch_between(TREE, after)


@pytest.mark.parametrize("entry", OFF_LIMITS)
def test_every_path_off_limits_is_refused_with_its_reason(entry):
    path = entry + "deep/file.py" if entry.endswith("/") else entry
    assert OFF_LIMITS[entry] in forbidden(path)
    assert OFF_LIMITS[entry] in forbidden(path.upper().replace(".PY", ".py"))
    exists = ROOT / entry
    assert exists.is_dir() if entry.endswith("/") else exists.is_file(), "the list names what is there"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("engine/stock/__init__.py", "it judges every token"),  # a package hides the module of its name
        ("engine/worker/__main__.py", "it takes the requests"),
        ("engine/weights.py", "which weights"),
        ("engine/../autotune/clock.py", "only files of engine/ and kernels/"),
        ("/engine/loop.py", "only files of engine/ and kernels/"),
        ("engine//loop.py", "only files of engine/ and kernels/"),
        ("engine\\loop.py", "only files of engine/ and kernels/"),
        ("torch/__init__.py", "only files of engine/ and kernels/"),
        ("sitecustomize.py", "only files of engine/ and kernels/"),
        ("engine.py", "only files of engine/ and kernels/"),
        ("engine/model.so", "only .py, .cu, .cuh files"),
        ("engine/loop", "only files of engine/ and kernels/"),
        ("engine/\u0435ngine.py", "only files of engine/ and kernels/"),
    ],
)
def test_paths_that_are_not_a_candidates(path, message):
    assert message in forbidden(path)


@pytest.mark.parametrize(
    "path", ["engine/loop.py", "engine/drafters/tree.py", "kernels/new/a.py", "kernels/cuda/x.cuh"]
)
def test_paths_that_are_a_candidates(path):
    assert forbidden(path) is None


@pytest.mark.parametrize(
    "diff",
    [
        "--- a/engine/loop.py\n+++ b/engine/cache.py\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/engine/loop.py\n+++ b/engine/loop.py\n",
        "--- a/engine/loop.py\n+++ b/engine/loop.py\n@@ -1,2 +1 @@\n-a\n+b\n",
        "--- a/engine/loop.py\n+++ b/engine/loop.py\n@@ -1 +1 @@\n-a\n-b\n+b\n",
        "--- a/engine/loop.py\n+++ b/engine/loop.py\n@@ -x +1 @@\n-a\n+b\n",
        "--- a/engine/stock.py\n+++ b/engine/stock.py\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/../run.py\n+++ b/../run.py\n@@ -1 +1 @@\n-a\n+b\n",
        "prose\n",
    ],
)
def test_a_diff_of_another_form_is_refused(diff):
    with pytest.raises(PatchError):
        applied(TREE, Patch(base="0", diff=diff))


def ending(base, first, second):
    """The merged patch, or the words in which it is refused."""
    try:
        return merged(base, first, second)
    except MergeConflict as conflict:
        return str(conflict)


@given(trees, trees, trees)
def test_merging_keeps_the_order_out_of_it(base, first, second):
    try:
        a, b = patch_between(base, base.changed(first.files)), patch_between(base, base.changed(second.files))
    except PatchError:
        assume(False)
    assert ending(base, a, b) == ending(base, b, a)
    assert merged(base, a, a) == a


@given(st.integers(0, 39), st.integers(0, 39), texts, texts)
def test_changes_of_lines_apart_stand_together(i, j, new, other):
    assume(abs(i - j) > 1)
    assume(f"line {i}\n" != new)
    assume(f"line {j}\n" != other)
    lines = TREE.files[LOOP].splitlines(keepends=True)

    def with_lines(**new):
        changed = [new.get(f"n{number}", line) for number, line in enumerate(lines)]
        return TREE.changed({LOOP: "".join(changed)})

    a, b = (patch_between(TREE, with_lines(**{f"n{n}": text})) for n, text in ((i, new), (j, other)))
    both = patch_between(TREE, with_lines(**{f"n{i}": new, f"n{j}": other}))
    assert merged(TREE, a, b) == both


def test_patches_of_different_files_merge():
    a, b = change("line 3\n", "x\n"), change("def wide():\n    return 1", "def wide():\n    return 2", CHAIN)
    union = merged(TREE, a, b)
    assert union.files == (LOOP, CHAIN)
    assert applied(TREE, union) == applied(applied(TREE, a), b)


@pytest.mark.parametrize("second", ["line 3\n", "line 4\n"])
def test_a_conflict_names_file_and_lines(second):
    a, b = change("line 3\n", "x\n"), change(second, "y\n")
    last = int(second.split()[1]) + 1
    with pytest.raises(MergeConflict, match=rf"engine/loop\.py: both patches change lines 4 to {last} of the base"):
        merged(TREE, a, b)


def test_two_new_files_of_one_name_conflict_unless_they_are_equal():
    a, b = (patch_between(TREE, TREE.changed({"engine/new.py": text})) for text in ("x\n", "y\n"))
    assert merged(TREE, a, a) == a
    with pytest.raises(MergeConflict, match="both patches add this file"):
        merged(TREE, a, b)


def test_patches_are_part_of_a_genome():
    space = cpu_space(cores=2)
    plain = Genome.complete(space, {"drafter": "ngram"})
    a, b = change("line 3\n", "x\n"), change("line 30\n", "y\n")
    assert plain.patched(()) == plain
    assert plain.json == '{"knobs":' + plain.json.removeprefix('{"knobs":'), "no key for what is not there"
    assert "patches" not in plain.json
    assert plain.id == content_hash({"knobs": plain.knobs})
    ids = {plain.id, plain.patched([a]).id, plain.patched([a, b]).id, plain.patched([b, a]).id}
    assert len(ids) == 4
    assert plain.patched([a]).json.endswith(f'"patches":["{a.id}"]}}')
    assert plain.patched([a, b]).complexity(space) == plain.complexity(space) + 2


def test_the_projects_own_tree_is_read_and_written_back(tmp_path):
    tree = CodeTree.read(ROOT)
    assert {"engine/worker.py", "space/genome.py", "kernels/cuda/common.cuh"} <= set(tree.files)
    assert not [path for path in tree.files if path.startswith(("autotune/", "archive/", "engine/drafters/train/"))]
    tree.write(tmp_path / "copy")
    assert CodeTree.read(tmp_path / "copy") == tree
    for path in tree.files:
        copy = (tmp_path / "copy" / path).lstat()
        assert copy.st_nlink == 1
        assert copy.st_ino != (ROOT / path).lstat().st_ino
        assert not copy.st_mode & 0o222
    with pytest.raises(FileExistsError):
        tree.write(tmp_path / "copy")


def test_a_link_in_the_code_is_refused(tmp_path):
    (tmp_path / "engine").mkdir()
    os.symlink("/etc/passwd", tmp_path / "engine" / "a.py")
    with pytest.raises(PatchError, match=r"engine/a\.py is a symbolic link"):
        CodeTree.read(tmp_path)


def test_a_link_in_the_way_of_the_copy_is_not_followed(tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text("mine\n")
    (tmp_path / "copy" / "engine").mkdir(parents=True)
    os.symlink(outside, tmp_path / "copy" / "engine" / "loop.py")
    with pytest.raises(FileExistsError):
        CodeTree({LOOP: "theirs\n"}).write(tmp_path / "copy")
    assert outside.read_text() == "mine\n"
