"""Safetensors files, read tensor by tensor or row range by row range, with errors that name the tensor."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from space.errors import EngineError

DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_HEADER_LIMIT = 100_000_000  # the safetensors format's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where one tensor lies: type, shape, and the bytes from `begin` to `end` after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class Container:
    """An open safetensors file: its metadata, its entries by name, and their bytes."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the header.

        Raises:
            EngineError: The file is missing or is no safetensors file, an entry contradicts itself, or the file ends
                before a tensor does.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                room = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(room)) if room <= _HEADER_LIMIT else None
        except (OSError, ValueError) as error:
            raise EngineError(f"{path}: no readable safetensors header ({error}); copy or convert it again") from error
        if not isinstance(header, dict):
            raise EngineError(f"{path}: no readable safetensors header; copy or convert it again")
        self._data = 8 + room
        size = path.stat().st_size - self._data
        self.metadata: Mapping[str, Any] = header.pop("__metadata__", None) or {}
        self.entries = {name: self._entry(name, fields, size) for name, fields in header.items()}

    def _entry(self, name: str, fields: Any, size: int) -> Entry:
        try:
            begin, end = fields["data_offsets"]
            entry = Entry(dtype=DTYPES[fields["dtype"]], shape=tuple(fields["shape"]), begin=begin, end=end)
            width = torch.Size(entry.shape).numel() * entry.dtype.itemsize
        except (ValueError, TypeError, KeyError) as error:
            message = f"the entry of tensor {name!r} is damaged or of an unknown type ({error})"
            raise EngineError(f"{self.path}: {message}; copy or convert it again") from error
        if not 0 <= begin <= end or end - begin != width:
            raise EngineError(f"{self.path}: the entry of tensor {name!r} is damaged; copy or convert it again")
        if end > size:
            raise EngineError(f"{self.path}: the file ends inside tensor {name!r}; copy or convert it again")
        return entry

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """Returns a tensor, or some rows of it (a scalar is one row), on the CPU.

        Raises:
            EngineError: There is no such tensor.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise EngineError(f"{self.path}: tensor {name!r} is missing; copy or convert the file again")
        shape, begin, end = entry.shape, entry.begin, entry.end
        if rows is not None:
            shape = shape or (1,)
            width = torch.Size(shape[1:]).numel() * entry.dtype.itemsize
            first, last, _ = rows.indices(shape[0])
            shape, begin, end = (last - first, *shape[1:]), begin + first * width, begin + last * width
        data = torch.empty(end - begin, dtype=torch.uint8)
        with self.path.open("rb") as file:
            file.seek(self._data + begin)
            file.readinto(data.numpy().data)
        return data.view(entry.dtype).reshape(shape)
