"""What a model needs of a packed matrix: the product with activations and the look-up of rows, on any device.

On a GPU up to 64 rows of activations go through the fused kernels (`kernels.skinny`); more rows decode the matrix to
bf16 first and multiply densely. On a CPU everything goes through the decode in `format`.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kernels.nvrtc import Argument, Kernel, compile_source
from kernels.skinny import MAX_TOKENS, chip, product
from kernels.weight12.format import PackedMatrix, unpack, unpack_rows
from space.errors import EngineError

_THREADS = 256


def linear(x: Tensor, weight: PackedMatrix) -> Tensor:
    """Returns x W^T in the type of `x` (bf16), for x [..., cols]."""
    rows = x.reshape(-1, weight.cols)
    if not rows.is_cuda or weight.cols % 8:
        result = rows @ unpack(weight).T
    elif rows.shape[0] <= MAX_TOKENS:
        result = product(rows, weight)
    else:
        result = rows @ decode(weight).T
    return result.reshape(*x.shape[:-1], weight.rows)


def embedding(index: Tensor, weight: PackedMatrix) -> Tensor:
    """Returns the bf16 rows [..., cols] at the int64 positions `index`; on a GPU without waiting for it.

    Raises:
        EngineError: On a CPU, an index is outside the matrix; on a GPU that stops the kernel.
    """
    flat = index.reshape(-1)
    if flat.is_cuda and weight.cols % 8 == 0:
        return gather(weight, flat).reshape(*index.shape, weight.cols)
    if not flat.is_cuda and ((flat < 0) | (flat >= weight.rows)).any():
        raise EngineError(
            f"row {int(flat.max())} or {int(flat.min())} is outside the {weight.rows} rows of an embedding"
        )
    found = unpack_rows(weight, flat)
    return found.reshape(*index.shape, weight.cols)


def decode(weight: PackedMatrix, out: Tensor | None = None) -> Tensor:
    """Returns the bf16 matrix, decoded by one kernel on its GPU; the reference is `format.unpack`.

    Args:
        weight: A packed matrix on a GPU with a multiple of 8 columns.
        out: Where to write, bf16 [rows, cols].
    """
    out = (
        torch.empty(weight.rows, weight.cols, dtype=torch.bfloat16, device=weight.payload.device)
        if out is None
        else out
    )
    sizes = [weight.rows, weight.cols, weight.tiles, weight.blocks]
    warps = weight.tiles * weight.blocks
    kernel = _kernel("unpack", out.device.index)
    kernel.launch(-(-warps * 32 // _THREADS), [*_parts(weight), *sizes, out], overlap=False)
    return out


def gather(weight: PackedMatrix, index: Tensor) -> Tensor:
    """Returns the bf16 rows [len(index), cols] by one kernel; the reference is `format.unpack_rows`."""
    out = torch.empty(len(index), weight.cols, dtype=torch.bfloat16, device=index.device)
    if len(index) == 0:
        return out
    arguments = [*_parts(weight), weight.rows, weight.cols, weight.blocks, index.contiguous(), len(index), out]
    kernel = _kernel("gather", out.device.index)
    kernel.launch(-(-len(index) * weight.blocks * 4 // _THREADS), arguments, overlap=False)
    return out


def _parts(weight: PackedMatrix) -> list[Argument]:
    return [weight.payload, weight.base, weight.starts, weight.escapes]


@cache
def _kernel(name: str, device: int) -> Kernel:
    folder = Path(__file__).parent.parent / "cuda"
    source = "".join((folder / part).read_text(encoding="utf-8") for part in ("common.cuh", "unpack.cu"))
    macros = {"PACKED": 1, "TOKEN_TILES": 1, "CLUSTER": 1, "FLOAT_OUT": 0, "ARGMAX": 0, "OVERLAP": 0}
    return Kernel(compile_source(source, chip(device).arch, macros), name, block=_THREADS)
