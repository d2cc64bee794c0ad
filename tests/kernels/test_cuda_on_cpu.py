"""The CUDA kernels' arithmetic and indices, run thread by thread on the CPU, against their references."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from cuda_emulator import COMPILER, Emulated

from kernels.skinny import Variant, defines, source, winners
from kernels.weight12.format import PackedMatrix, pack, unpack, unpack_rows

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ to run CUDA kernels on the CPU")
CUDA = Path(__file__).parents[2] / "kernels" / "cuda"


@dataclass(frozen=True)
class Case:
    variant: Variant
    tokens: int
    rows: int
    cols: int
    groups: int
    argmax: bool = False


def narrow(token_tiles: int, **more: int) -> Variant:
    settings = {"warps": 2, "stages": 3, "slices": 1, "sum_buffers": 2} | more
    return Variant(wide=False, packed=True, token_tiles=token_tiles, overlap=False, **settings)


def wide(token_tiles: int, **more: int) -> Variant:
    settings = {"warps": 4, "stages": 3, "slices": 1, "sum_buffers": 2} | more
    return Variant(wide=True, packed=True, token_tiles=token_tiles, overlap=False, **settings)


CASES = [
    Case(narrow(1), tokens=5, rows=37, cols=200, groups=2),
    Case(narrow(2, sum_buffers=1, slices=2), tokens=13, rows=50, cols=320, groups=1),
    Case(narrow(1, warps=3), tokens=8, rows=40, cols=256, groups=1, argmax=True),
    Case(wide(4), tokens=30, rows=150, cols=136, groups=2),
    Case(wide(8, warps=8, slices=2), tokens=50, rows=200, cols=192, groups=1),
    Case(wide(4), tokens=31, rows=40, cols=2400, groups=1),
    Case(wide(4, slices=4, cluster=4), tokens=32, rows=150, cols=320, groups=1),
    Case(wide(4, warps=8, slices=4, cluster=4, sum_buffers=1), tokens=17, rows=300, cols=320, groups=1),
    Case(wide(4, slices=4, cluster=2), tokens=25, rows=90, cols=320, groups=2, argmax=True),
]


def spread(rows: int, cols: int) -> torch.Tensor:
    """Weights of which one in fifty escapes and some are zero."""
    generator = torch.Generator().manual_seed(rows)
    weight = (torch.randn(rows, cols, generator=generator) * 0.02).bfloat16()
    flat = weight.view(-1)
    flat[::53] *= 2.0**-20
    flat[7::211] *= 2.0**9
    flat[2::11] = 0
    return weight


def multiply(
    case: Case, weight: torch.Tensor | PackedMatrix, x: torch.Tensor, folder: Path
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `kernels.skinny.product` does, on the CPU; fp32 output and the keys of the largest."""
    variant, packed = case.variant, isinstance(weight, PackedMatrix)
    variant = Variant(**{name: getattr(variant, name) for name in variant.__slots__} | {"packed": packed})
    kernels = Emulated(source(variant.wide), defines(variant, float_out=True, argmax=case.argmax), folder)
    tiles, blocks = -(-case.rows // 16), -(-case.cols // 64)
    outer = variant.slices // variant.cluster
    out = torch.full((case.tokens, case.rows), float("nan"))
    best = torch.zeros(case.tokens, dtype=torch.int64)
    partial = None
    if outer > 1 or (case.argmax and variant.wide):
        partial = torch.full((outer, tiles, variant.token_tiles * 32, 4), float("nan"))
    parts = [*weight.parts().values()] if isinstance(weight, PackedMatrix) else [weight, None, None, None]
    arguments = [*parts, x, x.stride(0), case.tokens, case.rows, case.cols, tiles, blocks, variant.slices]
    shape = (
        case.groups * variant.slices,
        variant.cluster,
        variant.warps * 32,
        variant.shared_bytes(case.tokens, blocks),
    )
    kernels.run("wide" if variant.wide else "skinny", shape, [*arguments, out, out.stride(0), partial, best])
    if partial is not None:
        arguments = [partial, outer, tiles, out, case.rows, case.tokens, out.stride(0), best]
        kernels.run("combine", (2, 1, variant.token_tiles * 32, 0), arguments)
    return out, best


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{'wide' if case.variant.wide else 'narrow'}-{case.tokens}")
def test_products_are_exact_and_the_same_packed_or_not(case: Case, tmp_path: Path) -> None:
    weight = spread(case.rows, case.cols)
    packed = pack(weight)
    assert packed.escape_share > 0.01
    x = torch.randn(case.tokens, case.cols, generator=torch.Generator().manual_seed(1)).bfloat16()
    got, best = multiply(case, packed, x, tmp_path)
    want = x.double() @ weight.double().T
    assert (got.double() - want).norm() / want.norm() < 1e-6
    plain, _ = multiply(case, unpack(packed), x, tmp_path)
    assert torch.equal(got, plain)
    if case.argmax:
        assert torch.equal(winners(best), got.argmax(1))


def test_rows_and_matrices_are_decoded(tmp_path: Path) -> None:
    weight = spread(50, 200)
    weight.view(-1)[5::301] = float("nan")
    packed = pack(weight)
    text = "".join((CUDA / part).read_text() for part in ("common.cuh", "unpack.cu"))
    macros = {"PACKED": 1, "TOKEN_TILES": 1, "CLUSTER": 1, "FLOAT_OUT": 0, "ARGMAX": 0, "OVERLAP": 0}
    kernels = Emulated(text, macros, tmp_path)
    out = torch.full((50, 200), 7.0, dtype=torch.bfloat16)
    parts = [*packed.parts().values()]
    kernels.run("unpack", (2, 1, 256, 0), [*parts, 50, 200, packed.tiles, packed.blocks, out])
    assert torch.equal(out.view(torch.int16), weight.view(torch.int16))
    index = torch.tensor([49, 0, 8, 8, 23])
    found = torch.full((5, 200), 7.0, dtype=torch.bfloat16)
    kernels.run("gather", (1, 1, 256, 0), [*parts, 50, 200, packed.blocks, index, 5, found])
    assert torch.equal(found.view(torch.int16), unpack_rows(packed, index).view(torch.int16))
