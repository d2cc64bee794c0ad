"""The converter: `python -m kernels.weight12.convert SOURCE TARGET` packs a checkpoint's safetensors files."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch
from safetensors import SafetensorError, safe_open

from kernels.weight12.file import Source, Stored, Writer
from space.errors import EngineError, SpecPilotError

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
_DTYPES |= {"I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64}
_DTYPES |= {"U8": torch.uint8, "BOOL": torch.bool}


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
    try:
        with safe_open(source, framework="pt") as tensors:
            names = list(tensors.keys())
            with Writer(target, names, device) as writer:
                for name in names:
                    writer.add(_source(tensors, name))
                return writer.stored
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{source}: cannot be read as safetensors ({error}); download it again") from error


def _source(tensors: Any, name: str) -> Source:
    view = tensors.get_slice(name)
    shape, dtype = tuple(view.get_shape()), _DTYPES.get(view.get_dtype())
    if dtype is None:
        raise EngineError(f"tensor {name!r} is {view.get_dtype()}; the converter takes {', '.join(sorted(_DTYPES))}")
    if not shape:
        return Source.of(name, tensors.get_tensor(name))
    return Source(name=name, shape=shape, dtype=dtype, read=lambda rows: view[rows])


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m kernels.weight12.convert", description=__doc__)
    parser.add_argument("source", type=Path, help="a checkpoint's folder, or one safetensors file")
    parser.add_argument("target", type=Path, help="the folder or file to write")
    parser.add_argument("--device", default="cpu", help="where to pack: cpu (default) or cuda")
    chosen = parser.parse_args(arguments)
    log = structlog.get_logger()
    try:
        stored = convert(chosen.source, chosen.target, chosen.device)
    except SpecPilotError as error:
        log.error(str(error))
        return 2
    for report in classes(stored):
        log.info(
            report.name,
            tensors=report.tensors,
            packed=report.packed,
            bits=round(report.bits, 3),
            escape_share=float(f"{report.escape_share:.3g}"),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
