"""Canonical JSON and content hashes: the same content gives the same bytes on every machine."""

import hashlib
import json
from typing import TypeAlias

_ABSENT = object()  # differs from null, which is a value

JsonValue: TypeAlias = "str | int | float | bool | None | list[JsonValue] | dict[str, JsonValue]"


def canonical_json(value: object) -> str:
    """Returns sorted, compact, ASCII JSON; refuses NaN and infinities (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def content_hash(value: object, length: int = 12) -> str:
    """Returns the first `length` hexadecimal digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def differing_keys(old: object, new: object, prefix: str = "") -> list[str]:
    """Names every leaf at which two JSON values differ, as `workload.max_tokens: 64 -> 128`; empty when none does."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted({*old, *new}):
            path = f"{prefix}.{key}" if prefix else str(key)
            lines += differing_keys(old.get(key, _ABSENT), new.get(key, _ABSENT), path)
        return lines
    before, after = ("(absent)" if value is _ABSENT else canonical_json(value) for value in (old, new))
    return [] if before == after else [f"{prefix}: {before} -> {after}"]
