"""Code patches: edits of engine/ and kernels/, kept as unified diffs against a base hash."""

from space.patch.apply import applied
from space.patch.base import MOST_BYTES, MOST_FILES, Patch, patch_between
from space.patch.edits import Edit, edited, read_edits
from space.patch.merge import MergeConflict, merged
from space.patch.scope import OFF_LIMITS, PATCHED_ROOMS, forbidden
from space.patch.tree import CodeTree, syntax_error

__all__ = [
    "MOST_BYTES",
    "MOST_FILES",
    "OFF_LIMITS",
    "PATCHED_ROOMS",
    "CodeTree",
    "Edit",
    "MergeConflict",
    "Patch",
    "applied",
    "edited",
    "forbidden",
    "merged",
    "patch_between",
    "read_edits",
    "syntax_error",
]
