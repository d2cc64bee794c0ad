"""The converter: packs a checkpoint's safetensors files, and sums up what became of each class of tensors."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from kernels.weight12.container import Container
from kernels.weight12.file import Source, Stored, Writer
from space.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReport:
    """Totals of the tensors that play the same part in every layer."""

    name: str
    tensors: int
    packed: int
    bits: float
    escape_share: float


def convert(source: Path, target: Path, device: torch.device | str = "cpu") -> dict[str, Stored]:
    """Packs every safetensors file of a checkpoint; file names stay, nothing else is copied.

    Tensors are read, packed and written in pieces, so that a large checkpoint needs little memory.

    Args:
        source: A safetensors file, or a folder with some.
        target: A file or a folder to match.
        device: Where packing is done.

    Returns:
        What was stored of each tensor.

    Raises:
        EngineError: There is nothing to convert, or a file cannot be read.
    """
    files = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    if not files:
        raise EngineError(f"{source}: holds no *.safetensors file; name a checkpoint's folder or one such file")
    stored: dict[str, Stored] = {}
    for file in files:
        stored |= _convert_file(file, target / file.name if source.is_dir() else target, device)
    return stored


def _convert_file(source: Path, target: Path, device: torch.device | str) -> dict[str, Stored]:
    container = Container(source)
    with Writer(target, container.entries, device) as writer:
        for name, entry in container.entries.items():
            writer.add(Source(name=name, shape=entry.shape, dtype=entry.dtype, read=partial(container.read, name)))
        return writer.stored


def classes(stored: dict[str, Stored]) -> list[ClassReport]:
    """Sums up by class: the name without its numbers, such as `model.layers.mlp.up_proj.weight`."""
    groups: dict[str, list[Stored]] = {}
    for name, entry in stored.items():
        key = ".".join(part for part in name.split(".") if not part.isdigit())
        groups.setdefault(key, []).append(entry)
    reports = []
    for key, entries in sorted(groups.items()):
        weights = sum(torch.Size(entry.shape).numel() for entry in entries) or 1
        reports.append(
            ClassReport(
                name=key,
                tensors=len(entries),
                packed=sum(entry.packed for entry in entries),
                bits=8 * sum(entry.nbytes for entry in entries) / weights,
                escape_share=sum(entry.escapes for entry in entries) / weights,
            )
        )
    return reports
