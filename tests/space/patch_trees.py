"""Small trees and random edits of them, for the tests of patches."""

from hypothesis import strategies as st

from space.patch import CodeTree

LOOP, CHAIN = "engine/loop.py", "engine/verify/chain.py"
TREE = CodeTree(
    {
        LOOP: "".join(f"line {n}\n" for n in range(40)),
        CHAIN: "def greedy():\n    return 1\n\n\ndef wide():\n    return 1\n",
        "engine/stock.py": "judge = True\n",
    }
)

# Few different lines, so that repeated and shifted ones are common; some that look like parts of a diff.
_line = st.sampled_from(["a", "b", "c", "", "@@ -1 +1 @@", "--- a/x", "+++ b/x", "-", "\ttab", "\x0c", "d\u2028e"])
texts = st.lists(_line, max_size=12).map(lambda lines: "".join(line + "\n" for line in lines))
trees = st.fixed_dictionaries({LOOP: texts}, optional={CHAIN: texts, "kernels/cuda/wide.cu": texts}).map(CodeTree)


def replaced(tree: CodeTree, path: str, old: str, new: str) -> CodeTree:
    """The tree with one piece of text replaced, which must be there."""
    assert old in tree.files[path]
    return tree.changed({path: tree.files[path].replace(old, new)})
