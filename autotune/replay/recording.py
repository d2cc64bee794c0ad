"""A recording of many requests, on disk: one .npz file, named by the hash of all that decides its content."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy

from engine.base import Request, Settings
from engine.record import Lattices, Trace
from space.canonical import content_hash
from space.errors import EngineError, InputError

_FORMAT = 1
_PIECES = 64
_PIECE = 1 << 16

POLICY = frozenset(
    {
        *("drafter", "draft_length", "ngram_max", "ngram_min", "suffix_depth", "suffix_min_match", "suffix_factor"),
        *("min_probability", "suffix_first", "tree", "tree_nodes", "tree_width", "tree_floor", "tree_branch"),
        *("level_one", "survival_floor", "agreement_match", "threads", "linear_path", "prefill_chunk"),
    }
)
"""Settings that a replay may choose freely. All others change what the drafter says, and are part of a recording."""


def drafting(settings: Settings) -> dict[str, str | int | float | bool]:
    """The settings that a recording is bound to."""
    return {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in POLICY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Traces of one target and drafter.

    `kind` is the drafter's kind; `none` when text alone was recorded. `bound` are the settings that the drafter
    was started with, see `drafting`.
    """

    kind: str
    bound: Mapping[str, str | int | float | bool]
    traces: tuple[Trace, ...]

    def check(self, settings: Settings) -> None:
        """InputError for settings that this recording says nothing about."""
        other = {name: value for name, value in drafting(settings).items() if self.bound[name] != value}
        for name, value in other.items():
            raise InputError(f"{name} = {value!r} cannot be replayed: it was recorded with {self.bound[name]!r}")
        if settings.drafter not in ("none", "ngram", "suffix", self.kind):
            raise InputError(f"drafter {settings.drafter!r} cannot be replayed: recorded is {self.kind!r}")

    def save(self, path: Path) -> None:
        """Writes the file, whole or not at all; InputError where that fails."""
        arrays: dict[str, Any] = {"about": numpy.array(json.dumps(self._about()))}
        for index, trace in enumerate(self.traces):
            arrays[f"{index}.chains"] = trace.chains
            for name, lattices in (("first", trace.first), ("second", trace.second)):
                for part in fields(lattices):
                    arrays[f"{index}.{name}.{part.name}"] = getattr(lattices, part.name)
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                numpy.savez(file, **arrays)
            unfinished.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):  # there may be no folder to take it from
                unfinished.unlink()
            raise InputError(
                f"cannot write the recording {path}: {error.strerror}\nFree space or set SPECPILOT_HOME."
            ) from error

    def _about(self) -> dict[str, Any]:
        requests = [
            {
                "prompt": trace.request.prompt,
                "max_tokens": trace.request.max_tokens,
                "stop_ids": trace.request.stop_ids,
                "tokens": trace.tokens,
            }
            for trace in self.traces
        ]
        return {"format": _FORMAT, "kind": self.kind, "bound": dict(self.bound), "requests": requests}

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Reads a file that `save` wrote; InputError when it is damaged."""
        try:
            with numpy.load(path) as arrays:
                about = json.loads(str(arrays["about"]))
                traces = tuple(_trace(request, index, arrays) for index, request in enumerate(about["requests"]))
            return cls(kind=about["kind"], bound=about["bound"], traces=traces)
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise InputError(f"the recording {path} is damaged ({error}); delete it to record anew") from error


def _trace(about: Mapping[str, Any], index: int, arrays: Mapping[str, Any]) -> Trace:
    def lattices(name: str) -> Lattices:
        return Lattices(**{part.name: arrays[f"{index}.{name}.{part.name}"] for part in fields(Lattices)})

    request = Request(prompt=tuple(about["prompt"]), max_tokens=about["max_tokens"], stop_ids=tuple(about["stop_ids"]))
    return Trace(
        request=request,
        tokens=tuple(about["tokens"]),
        chains=arrays[f"{index}.chains"],
        first=lattices("first"),
        second=lattices("second"),
    )


def recording_path(
    home: Path, target: Path, drafter: Path | None, requests: Sequence[Request], settings: Settings
) -> Path:
    """Where a recording lies: its name is a hash of both checkpoints, the requests and the drafter's settings."""
    name = content_hash(
        {
            "format": _FORMAT,
            "target": _fingerprint(target),
            "drafter": _fingerprint(drafter) if drafter is not None else "",
            "requests": [[list(r.prompt), r.max_tokens, list(r.stop_ids)] for r in requests],
            "bound": drafting(settings),
        },
        length=32,
    )
    return home / "recordings" / f"{name}.npz"


def _fingerprint(folder: Path) -> str:
    """Hash of a checkpoint: of each file the name, the size, and pieces from its whole length.

    Reading all of a large checkpoint would take longer than a replay; training changes every tensor.
    """
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json")):
            size = path.stat().st_size
            digest.update(f"{path.name} {size} ".encode())
            with path.open("rb") as file:
                for start in sorted({size * index // _PIECES for index in range(_PIECES)}):
                    file.seek(start)
                    digest.update(file.read(_PIECE))
    except OSError as error:
        raise EngineError(f"cannot read {error.filename}: {error.strerror}") from error
    return digest.hexdigest()
