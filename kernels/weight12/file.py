"""The file of packed weights: a safetensors file with a version and one checksum a tensor, written atomically.

A packed tensor `a.weight` is stored as `a.weight.w12.payload`, `.base`, `.starts` and `.escapes`; any other keeps
its name and bytes. The metadata entry `tensors` says of each what it is, and the SHA-256 of its stored bytes.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch
from torch import Tensor

from kernels.weight12.container import DTYPE_NAMES, DTYPES, Container
from kernels.weight12.format import (
    BLOCK_COLS,
    BLOCK_WEIGHTS,
    MAX_ESCAPE_SHARE,
    TILE_ROWS,
    PackedMatrix,
    pack_rows,
    plan_rows,
    row_chunks,
)
from space.errors import EngineError

FORMAT = "specpilot-w12"
VERSION = 1
_PARTS = ("payload", "base", "starts", "escapes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor to store, read in row ranges (a scalar is one row), so that it never has to be in memory as a whole."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[slice], Tensor]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "Source":
        """A tensor that is in memory anyway."""
        flat = tensor if tensor.ndim else tensor.reshape(1)
        return cls(name=name, shape=tuple(tensor.shape), dtype=tensor.dtype, read=lambda rows: flat[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the file says of one tensor."""

    packed: bool
    shape: tuple[int, ...]
    escapes: int
    nbytes: int
    sha256: str


class Writer:
    """Writes one file, tensor by tensor; the file appears under its name only when `with` ends well."""

    def __init__(self, path: Path, names: Iterable[str], device: torch.device | str = "cpu") -> None:
        """Opens a temporary file beside `path`.

        Args:
            path: The file to make.
            names: Names of the tensors that will come; they decide how much room the header gets.
            device: Where packing is done.
        """
        self._path, self._device = path, torch.device(device)
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        # Room for each tensor: five entries with its name, three numbers of at most 15 digits each, a checksum.
        self._room = (1024 + sum(5 * len(json.dumps(name)) + 900 for name in names) + 7) // 8 * 8
        self._entries: dict[str, dict[str, Any]] = {}
        self.stored: dict[str, Stored] = {}
        self._offset = 0
        self._file: IO[bytes]

    def __enter__(self) -> Self:
        """Reserves the header."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._temporary.open("wb")
        self._file.write(bytes(8 + self._room))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Completes the header and moves the file to its name, or removes it after an error."""
        complete = False
        try:
            if kind is None:
                self._finish()
                complete = True
        finally:
            self._file.close()
            if complete:
                self._temporary.replace(self._path)
            else:
                self._temporary.unlink()

    def add(self, source: Source) -> Stored:
        """Stores a tensor: packed if it is a bf16 matrix that gets smaller and has few escapes, else as it is."""
        base = _plan(source, self._device) if _packable(source) else None
        digest = _digest(source.shape)
        begin = self._offset
        escapes = 0 if base is None else self._add_packed(source, base, digest)
        if base is None:
            self._add_plain(source, digest)
        stored = Stored(
            packed=base is not None,
            shape=source.shape,
            escapes=escapes,
            nbytes=self._offset - begin,
            sha256=digest.hexdigest(),
        )
        self.stored[source.name] = stored
        return stored

    def _add_packed(self, source: Source, base: Tensor, digest: Any) -> int:
        rows, cols = source.shape
        tiles, blocks = -(-rows // TILE_ROWS), -(-cols // BLOCK_COLS)
        starts, escapes, count = [torch.zeros(1, dtype=torch.int32)], [], 0
        bases = []
        begin = self._offset
        for part in row_chunks(rows, cols):
            piece = pack_rows(source.read(part).to(self._device), base[part].to(self._device))
            self._put(piece.payload, digest)
            starts.append(piece.starts[1:].cpu() + count)
            escapes.append(piece.escapes.cpu())
            bases.append(piece.base.cpu())
            count += piece.escapes.numel()
        self._enter(f"{source.name}.w12.payload", torch.int32, (tiles, blocks, 3, 32, 4), begin)
        for part_name, pieces in (("base", bases), ("starts", starts), ("escapes", escapes)):
            begin, whole = self._offset, torch.cat(pieces)
            self._put(whole, digest)
            self._enter(f"{source.name}.w12.{part_name}", whole.dtype, tuple(whole.shape), begin)
        return count

    def _add_plain(self, source: Source, digest: Any) -> None:
        begin = self._offset
        rows = source.shape[0] if source.shape else 1
        for part in row_chunks(rows, torch.Size(source.shape[1:]).numel()):
            self._put(source.read(part), digest)
        self._enter(source.name, source.dtype, source.shape, begin)

    def _put(self, tensor: Tensor, digest: Any) -> None:
        data = _bytes(tensor)
        digest.update(data)
        self._file.write(data)
        self._offset += data.nbytes

    def _enter(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], begin: int) -> None:
        if name in self._entries:
            raise EngineError(f"tensor {name!r} comes twice; a file holds each name once")
        if dtype not in DTYPE_NAMES:
            raise EngineError(f"tensor {name!r} is {dtype}; a file holds {', '.join(sorted(DTYPES))}")
        self._entries[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, self._offset]}

    def _finish(self) -> None:
        tensors = json.dumps({name: asdict(stored) for name, stored in self.stored.items()})
        metadata = {"format": FORMAT, "version": str(VERSION), "tensors": tensors}
        header = json.dumps({"__metadata__": metadata, **self._entries}).encode()
        if len(header) > self._room:
            raise EngineError(f"{self._path}: tensors came that the writer was not told of; pass every name to Writer")
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + header.ljust(self._room))
        self._file.flush()
        os.fsync(self._file.fileno())


def _digest(shape: tuple[int, ...]) -> Any:
    """A checksum that knows the shape, which lies in the header."""
    return hashlib.sha256(repr(shape).encode())


def _packable(source: Source) -> bool:
    if len(source.shape) != 2 or source.dtype != torch.bfloat16:
        return False
    rows, cols = source.shape
    padded = -(-rows // TILE_ROWS) * -(-cols // BLOCK_COLS) * BLOCK_WEIGHTS
    return padded * 3 < rows * cols * 4  # twelve bits with the padding against sixteen without


def _plan(source: Source, device: torch.device) -> Tensor | None:
    """The base of each row, or None if too many weights would escape."""
    rows, cols = source.shape
    bases, escapes = [], 0
    for part in row_chunks(rows, cols):
        plan = plan_rows(source.read(part).to(device))
        bases.append(plan.base.cpu())
        escapes += plan.escapes
    return torch.cat(bases) if escapes <= MAX_ESCAPE_SHARE * rows * cols else None


class Reader:
    """Opens a file of packed weights and loads tensors one by one; everything is checked before it is used."""

    def __init__(self, path: Path) -> None:
        """Reads the header.

        Raises:
            EngineError: The file is missing, is none of ours, is of a newer version, or ends before a tensor does.
        """
        self._container = Container(path)
        metadata = self._container.metadata
        if metadata.get("format") != FORMAT:
            raise EngineError(f"{path}: format is {metadata.get('format')!r}, not {FORMAT!r}; convert it first")
        if metadata.get("version") != str(VERSION):
            raise EngineError(f"{path}: version is {metadata.get('version')}, this program reads {VERSION}; convert it")
        try:
            self.stored = {
                name: Stored(**{**fields, "shape": tuple(fields["shape"])})
                for name, fields in json.loads(metadata["tensors"]).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EngineError(f"{path}: the list of tensors is damaged ({error}); copy or convert it again") from error

    def load(self, name: str, device: torch.device | str = "cpu") -> Tensor | PackedMatrix:
        """Returns a tensor as it is stored.

        Raises:
            EngineError: There is no such tensor, or its bytes are not the ones that were written.
        """
        path, stored = self._container.path, self.stored.get(name)
        if stored is None:
            raise EngineError(f"{path}: no tensor {name!r}; it holds {len(self.stored)}, see Reader.stored")
        keys = [f"{name}.w12.{part}" for part in _PARTS] if stored.packed else [name]
        tensors = [self._container.read(key) for key in keys]
        digest = _digest(stored.shape)
        for tensor in tensors:
            digest.update(_bytes(tensor))
        if digest.hexdigest() != stored.sha256:
            raise EngineError(f"{path}: tensor {name!r} is corrupt (its checksum differs); copy or convert it again")
        if not stored.packed:
            return tensors[0].to(device)
        rows, cols = stored.shape
        return PackedMatrix(rows=rows, cols=cols, **dict(zip(_PARTS, tensors, strict=True))).to(device)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data
