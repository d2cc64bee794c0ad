"""Edits in search/replace form: what is read from a reply, and how a block that does not fit is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patch_trees import CHAIN, LOOP, TREE

from space.errors import PatchError
from space.patch import Edit, edited, read_edits


def block(path, search, replace):
    return f"{path}\n<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


def test_blocks_are_read_from_prose():
    reply = (
        "I widen the tree.\n\n```python\n"
        + block("`engine/loop.py`", "line 3\n", "line three\n")
        + "```\nand\r\n"
        + block("**kernels/new.py**", "", "x = 1\n").replace("\n", "\r\n")
        + "engine/verify/chain.py\n```python\n"
        + block("", "    return 1\n\n", "    return 2\n\n")
    )
    assert read_edits(reply) == (
        Edit(LOOP, ("line 3",), ("line three",)),
        Edit("kernels/new.py", (), ("x = 1",)),
        Edit(CHAIN, ("    return 1", ""), ("    return 2", "")),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no edit was found; write, each on its own line: the path, <<<<<<< SEARCH"),
        ("I would rather not.\n" * 5000, "no edit was found"),
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n", "block 1 does not say which file"),
        ("look at this file\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n", "block 1 does not say which file"),
        (
            block(LOOP, "a\n", "b\n") + block(LOOP, "c\n", "d\n").replace("=======\n", ""),
            "block 2 has no line '======='",
        ),
        (block(LOOP, "a\n", "b\n").replace(">>>>>>> REPLACE\n", ""), "block 1 has no line '>>>>>>> REPLACE'"),
        (f"{LOOP}\n<<<<<<< SEARCH\na\n" + block(LOOP, "c\n", "d\n"), "block 1 has no line '======='"),
    ],
)
def test_a_broken_reply_is_told_precisely(text, message):
    with pytest.raises(PatchError, match=message):
        read_edits(text)


@given(
    st.text(max_size=300) | st.lists(st.sampled_from(["a/b.py", "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "x"]))
)
def test_any_text_is_edits_or_a_patch_error(text):
    text = text if isinstance(text, str) else "\n".join(text)
    try:
        edits = read_edits(text)
    except PatchError:
        return
    assert edits


def test_edits_are_made_in_order():
    edits = [
        Edit(LOOP, ("line 3",), ("first", "second")),
        Edit(LOOP, ("second", "line 4"), ()),
        Edit("kernels/new.py", (), ("x = 1",)),
    ]
    after = edited(TREE, edits)
    assert after.files[LOOP] == TREE.files[LOOP].replace("line 3\nline 4\n", "first\n")
    assert after.files["kernels/new.py"] == "x = 1\n"
    assert "kernels/new.py" not in TREE.files


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            Edit(LOOP, ("line 333", "x"), ()),
            "block 1, engine/loop.py: the search lines do not stand in the file: "
            "there is no line 'line 333', but 'line 3",
        ),
        (Edit(LOOP, ("line 3", "line 5"), ()), "though each of them does somewhere; copy them together"),
        (Edit(CHAIN, ("    return 1",), ()), r"stand 2 times \(lines 2, 6\); give more of them"),
        (Edit(LOOP, (), ("x",)), "the file is there already; name the lines to replace"),
        (Edit(LOOP, ("", " "), ("x",)), "the file is there already"),
        (Edit("engine/new.py", ("x",), ("y",)), "there is no such file; leave the search part empty"),
        (Edit("engine/stock.py", ("judge = True",), ("judge = False",)), "engine/stock.py is off limits: it judges"),
        (Edit("../run.py", (), ("x",)), "only files of engine/ and kernels/"),
    ],
)
def test_an_edit_that_does_not_fit_is_told_precisely(edit, message):
    with pytest.raises(PatchError, match=message):
        edited(TREE, [edit])
