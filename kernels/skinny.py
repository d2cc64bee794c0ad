"""Products of a few rows of activations with a large matrix, bf16 or 12-bit, at the speed of memory (`cuda/*.cu`)."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kernels.nvrtc import Argument, Kernel, compile_source
from kernels.weight12.format import BLOCK_COLS, TILE_ROWS, PackedMatrix
from space.errors import EngineError

MAX_TOKENS = 64
_LANE_BYTES = 512  # 16 bytes a lane
_MAX_BLOCKS_A_WARP = 31  # narrow: the side table of a warp's blocks is one register
_MAX_BLOCKS_A_SLICE = 63  # wide: two registers
_SMALL = 40_000_000  # weights of a matrix whose product is over before a deep ring pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How one product runs: which kernel, its macros, and into how many slices the columns are cut."""

    wide: bool
    packed: bool
    token_tiles: int
    warps: int
    stages: int
    slices: int
    overlap: bool
    cluster: int = 1
    sum_buffers: int = 2

    def shared_bytes(self, tokens: int, blocks: int) -> int:
        """Dynamic shared memory of a thread block: rings of copies, sums of the warps, a slice of the activations."""
        ring = self.warps * self.stages * (3 if self.packed else 4) * _LANE_BYTES
        sums = self.warps * self.token_tiles * _LANE_BYTES
        slice_blocks = -(-blocks // self.slices)
        if self.wide:
            inbox = self.sum_buffers * sums if self.cluster > 1 else 0
            return ring + inbox + slice_blocks * self.token_tiles * 8 * BLOCK_COLS * 2
        return ring + self.sum_buffers * sums + tokens * (slice_blocks * BLOCK_COLS * 2 + 64)

    def fits(self, tokens: int, blocks: int, chip: "Chip") -> bool:
        """Whether the chip has the shared memory, and the side tables hold a slice."""
        slice_blocks = -(-blocks // self.slices)
        if self.wide:
            possible = chip.hopper and self.warps % 4 == 0 and slice_blocks <= _MAX_BLOCKS_A_SLICE
            possible = possible and self.slices % self.cluster == 0 and 4 * self.token_tiles % self.cluster == 0
        else:
            possible = self.cluster == 1 and slice_blocks <= _MAX_BLOCKS_A_WARP * self.warps
        return possible and self.slices <= blocks and self.shared_bytes(tokens, blocks) <= chip.shared_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What the choice of a variant needs to know of a GPU."""

    arch: str
    multiprocessors: int
    shared_limit: int
    hopper: bool


@cache
def chip(device: int) -> Chip:
    """Reads a GPU's properties."""
    p = torch.cuda.get_device_properties(device)
    hopper = p.major >= 9
    return Chip(
        arch=f"sm_{p.major}{p.minor}{'a' if hopper else ''}",
        multiprocessors=p.multi_processor_count,
        shared_limit=p.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        hopper=hopper,
    )


def choose(*, packed: bool, tokens: int, rows: int, cols: int, chip: Chip) -> Variant:
    """The variant for one shape, by what was measured on an H200 (docs/weight12.md).

    Raises:
        EngineError: No variant fits the chip.
    """
    found = next((v for v in candidates(packed=packed, tokens=tokens, rows=rows, cols=cols, chip=chip)), None)
    if found is None:
        raise EngineError(
            f"no kernel variant fits {tokens} tokens x {cols} columns on {chip.arch}; use weight_format=bf16"
        )
    return found


def candidates(*, packed: bool, tokens: int, rows: int, cols: int, chip: Chip) -> Iterator[Variant]:
    """The variants worth trying for one shape, the likely best first."""
    narrow = _narrow(packed, tokens, rows, cols, chip)
    wide = _wide(packed, tokens, cols, chip)
    order = (wide, narrow) if chip.hopper and tokens > 16 else (narrow, wide)
    yield from (variant for variant in order if variant is not None)


def _token_tiles(tokens: int) -> int:
    return next(n for n in (1, 2, 4, 8) if tokens <= n * 8)


def _narrow(packed: bool, tokens: int, rows: int, cols: int, chip: Chip) -> Variant | None:
    """Whole columns if shared memory allows, else as few slices as leave a ring worth having; then the most warps.

    For one token or few and a small matrix half of the shared memory is better than all: the next product's blocks then
    fit beside this one's and read ahead.
    """
    tiles, blocks = _token_tiles(tokens), -(-cols // BLOCK_COLS)
    tries = [(1, warps, stages) for warps in (16, 12) for stages in (3, 8, 7, 6, 5, 4, 3)]
    split = ((16, 5), (16, 4), (12, 5)) if tiles == 1 else ((16, 5), (12, 5), (16, 4))
    tries += [(n, *ring) for n in range(2, blocks + 1) for ring in split]
    tries += [(n, 8, stages) for n in range(1, blocks + 1) for stages in (8, 7, 6, 5, 4, 3)]
    for number, (slices, warps, stages) in enumerate(tries):
        shallow = number == 0
        variant = Variant(
            wide=False,
            packed=packed,
            token_tiles=tiles,
            warps=warps,
            stages=stages,
            slices=slices,
            overlap=chip.hopper,
            sum_buffers=1 if tiles > 1 or shallow else 2,
        )
        half = variant.shared_bytes(tokens, blocks) < chip.shared_limit // 2 - 1024
        if variant.fits(tokens, blocks, chip) and (not shallow or (half and rows * cols <= _SMALL)):
            return variant
    return None


def _wide(packed: bool, tokens: int, cols: int, chip: Chip) -> Variant | None:
    """Up to 32 tokens clusters of four; beyond, where their inboxes leave no room for rings, slices through memory."""
    tiles, blocks = _token_tiles(tokens), -(-cols // BLOCK_COLS)
    cluster, warps, least = (4, 16, 3) if tiles <= 4 else (1, 12, 4)
    for slices in range(cluster, blocks + 1, cluster):
        for stages in (8, 7, 6, 5, 4, 3):
            variant = Variant(
                wide=True,
                packed=packed,
                token_tiles=tiles,
                warps=warps,
                stages=stages,
                slices=slices,
                overlap=True,
                cluster=cluster,
            )
            if stages >= least and variant.fits(tokens, blocks, chip):
                return variant
    return None


@cache
def source(wide: bool) -> str:
    """The CUDA C++ of one kernel."""
    folder = Path(__file__).parent / "cuda"
    parts = ("common.cuh", "wide.cu" if wide else "skinny.cu")
    return "".join((folder / part).read_text(encoding="utf-8") for part in parts)


def defines(variant: Variant, *, float_out: bool, argmax: bool) -> dict[str, int]:
    """The macros of a variant."""
    macros = {name.upper(): int(value) for name, value in asdict(variant).items() if name != "slices"}
    return macros | {"FLOAT_OUT": int(float_out), "ARGMAX": int(argmax)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A variant on a device: the product, the sum over slices, and how many groups of slices run at a time."""

    main: Kernel
    combine: Kernel
    groups: int


@cache
def _build(variant: Variant, shared: int, float_out: bool, argmax: bool, device: int) -> _Built:
    gpu = chip(device)
    macros = defines(variant, float_out=float_out, argmax=argmax)
    cubin = compile_source(source(variant.wide), gpu.arch, macros)
    name = "wide" if variant.wide else "skinny"
    main = Kernel(cubin, name, block=variant.warps * 32, shared=shared, cluster=variant.cluster)
    blocks = gpu.multiprocessors
    if variant.cluster > 1:
        blocks = main.resident_clusters() * variant.cluster
    groups = max(blocks // variant.slices, 1)
    return _Built(main=main, combine=Kernel(cubin, "combine", block=variant.token_tiles * 32), groups=groups)


def product(
    x: Tensor,
    weight: Tensor | PackedMatrix,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
    best: Tensor | None = None,
    variant: Variant | None = None,
) -> Tensor:
    """Returns x W^T on the GPU, summed in fp32 in an order that depends on the shape only.

    The kernel starts to read the weights before the one ahead of it has ended: weights that were written just now need
    a synchronisation first, activations do not.

    Args:
        x: bf16 [tokens, cols], 1 to 64 tokens, rows 16-byte aligned.
        weight: bf16 [rows, cols] with cols a multiple of 8, or the same packed.
        out_dtype: bf16 or fp32.
        out: Where to write; [tokens, rows] of `out_dtype`.
        best: int64 [tokens] of zeros, or None; receives the keys of `winners`.
        variant: How to run; chosen by shape when None.

    Raises:
        EngineError: Shapes, types or devices do not fit.
    """
    rows, cols = (weight.rows, weight.cols) if isinstance(weight, PackedMatrix) else weight.shape
    _check(x, weight, cols, out_dtype)
    tokens, device = x.shape[0], x.device.index
    gpu = chip(device)
    variant = variant or choose(packed=isinstance(weight, PackedMatrix), tokens=tokens, rows=rows, cols=cols, chip=gpu)
    out = torch.empty(tokens, rows, dtype=out_dtype, device=x.device) if out is None else out
    tiles, blocks = -(-rows // TILE_ROWS), -(-cols // BLOCK_COLS)
    built = _build(variant, variant.shared_bytes(tokens, blocks), out_dtype == torch.float32, best is not None, device)
    partial = None
    outer = variant.slices // variant.cluster
    if outer > 1 or (best is not None and variant.wide):
        shape = (outer, tiles, variant.token_tiles * 32, 4)
        partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    parts: list[Argument]
    if isinstance(weight, PackedMatrix):
        parts = [weight.payload, weight.base, weight.starts, weight.escapes]
    else:
        parts = [weight, None, None, None]
    sizes = [tokens, rows, cols, tiles, blocks, variant.slices]
    arguments: list[Argument] = [*parts, x, x.stride(0), *sizes, out, out.stride(0), partial, best]
    grid = min(built.groups, -(-tiles // 4) if variant.wide else tiles) * variant.slices
    built.main.launch(grid, arguments, overlap=variant.overlap)
    if partial is not None:
        arguments = [partial, outer, tiles, out, rows, tokens, out.stride(0), best]
        built.combine.launch(min(tiles, gpu.multiprocessors * 8), arguments, overlap=variant.overlap)
    return out


def winners(best: Tensor) -> Tensor:
    """Rows of the largest outputs (int64 [tokens], the lowest row among equals) from the keys of `product`."""
    return 0xFFFFFFFF - (best & 0xFFFFFFFF)


def _check(x: Tensor, weight: Tensor | PackedMatrix, cols: int, out_dtype: torch.dtype) -> None:
    wrong = None
    if x.ndim != 2 or x.dtype != torch.bfloat16 or not x.is_cuda or not 1 <= x.shape[0] <= MAX_TOKENS:
        wrong = f"x is {x.dtype} {tuple(x.shape)} on {x.device}; it takes bf16 [1..{MAX_TOKENS}, cols] on a GPU"
    elif x.shape[1] != cols or x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        wrong = f"x has {x.shape[1]} columns and strides {x.stride()}; it takes {cols}, in rows aligned to 16 bytes"
    elif isinstance(weight, Tensor) and (weight.dtype != torch.bfloat16 or not weight.is_contiguous()):
        wrong = f"the weight is {weight.dtype} with strides {weight.stride()}; it takes contiguous bf16"
    elif cols % 8:
        wrong = f"{cols} columns are no multiple of 8; pad them"
    elif out_dtype not in (torch.bfloat16, torch.float32):
        wrong = f"out_dtype is {out_dtype}; it takes bfloat16 or float32"
    if wrong:
        raise EngineError(f"the skinny product cannot run: {wrong}")
