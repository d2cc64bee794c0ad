"""The skinny products: choice of a variant on any machine, results on a GPU."""

from dataclasses import replace

import pytest
import torch

from kernels.skinny import Chip, Variant, choose, product, winners
from kernels.weight12.format import pack, unpack
from space.errors import EngineError

HOPPER = Chip(arch="sm_90a", multiprocessors=132, shared_limit=232448, hopper=True)
ADA = Chip(arch="sm_89", multiprocessors=128, shared_limit=101376, hopper=False)

VARIANTS = [
    Variant(wide=False, packed=True, token_tiles=0, warps=8, stages=4, slices=1, overlap=False),
    Variant(wide=False, packed=True, token_tiles=0, warps=16, stages=3, slices=3, overlap=True, sum_buffers=1),
    Variant(wide=False, packed=True, token_tiles=0, warps=12, stages=2, slices=2, overlap=False),
    Variant(wide=True, packed=True, token_tiles=0, warps=8, stages=4, slices=1, overlap=True),
    Variant(wide=True, packed=True, token_tiles=0, warps=12, stages=3, slices=3, overlap=False),
    Variant(wide=True, packed=True, token_tiles=0, warps=8, stages=3, slices=4, cluster=4, overlap=True),
    Variant(wide=True, packed=True, token_tiles=0, warps=12, stages=3, slices=8, cluster=4, overlap=True),
    Variant(wide=True, packed=True, token_tiles=0, warps=16, stages=3, slices=2, cluster=2, overlap=False),
]
SHAPES = [(16, 64), (40000, 512), (33, 1000), (1, 8), (4099, 2120), (576, 1536)]
TOKENS = [1, 7, 8, 13, 16, 32, 50, 64]

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.mark.parametrize("chip", [HOPPER, ADA])
@pytest.mark.parametrize("cols", [8, 576, 4096, 14336, 28672])
@pytest.mark.parametrize("tokens", [1, 8, 9, 16, 31, 64])
@pytest.mark.parametrize("packed", [True, False])
def test_every_shape_has_a_variant_that_fits(chip: Chip, cols: int, tokens: int, packed: bool) -> None:
    variant = choose(packed=packed, tokens=tokens, rows=4096, cols=cols, chip=chip)
    blocks = -(-cols // 64)
    assert variant.token_tiles * 8 >= tokens
    assert variant.slices <= blocks
    assert variant.fits(tokens, blocks, chip)
    assert variant.overlap == chip.hopper


def test_a_matrix_off_the_gpu_is_refused() -> None:
    with pytest.raises(EngineError, match="on a GPU"):
        product(torch.zeros(1, 8, dtype=torch.bfloat16), torch.zeros(16, 8, dtype=torch.bfloat16))


def fitted(variant: Variant, tokens: int, cols: int) -> Variant:
    """The variant for a shape: with more slices where shared memory asks for them, for bf16 weights too."""
    blocks = -(-cols // 64)
    tiles = next(n for n in (1, 2, 4, 8) if tokens <= 8 * n)
    cluster = min(variant.cluster, 1 << (blocks.bit_length() - 1))
    sums = 1 if tiles > 2 else variant.sum_buffers
    first = max(min(variant.slices, blocks) // cluster * cluster, cluster)
    tries = (
        replace(variant, token_tiles=tiles, sum_buffers=sums, slices=slices, cluster=cluster)
        for slices in range(first, blocks + 1, cluster)
    )
    return next(v for v in tries if replace(v, packed=False).fits(tokens, blocks, HOPPER))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_the_variants_of_the_gpu_tests_fit(variant: Variant, tokens: int) -> None:
    for _, cols in SHAPES:
        chosen = fitted(variant, tokens, cols)
        assert chosen.fits(tokens, -(-cols // 64), HOPPER)
        assert chosen.wide == variant.wide


def inputs(tokens: int, rows: int, cols: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(tokens, cols, generator=generator, device="cuda").bfloat16()
    weight = (torch.randn(rows, cols, generator=generator, device="cuda") * 0.02).bfloat16()
    return x, weight


def spread(weight: torch.Tensor, every: int) -> torch.Tensor:
    """Moves every n-th weight far down or up, and zeroes some: many escapes, all finite."""
    flat = weight.clone().view(-1)
    flat[::every] *= 2.0**-20
    flat[1 :: every * 3] *= 2.0**6
    flat[2 :: every * 2] = 0
    flat[3 :: every * 2] = -0.0
    return flat.view_as(weight)


def exact(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.double() @ weight.double().T


@gpu
@needs_gpu
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_packed_equals_decode_first_bit_for_bit(variant: Variant, tokens: int) -> None:
    for number, (rows, cols) in enumerate(SHAPES):
        x, weight = inputs(tokens, rows, cols, 100 * tokens + number)
        chosen = fitted(variant, tokens, cols)
        for matrix in (weight, spread(weight, 37), spread(weight, 5)):
            packed = pack(matrix)
            for dtype in (torch.float32, torch.bfloat16):
                out = torch.full((tokens, rows), float("nan"), dtype=dtype, device="cuda")
                got = product(x, packed, out_dtype=dtype, out=out, variant=chosen)
                want = product(x, unpack(packed), out_dtype=dtype, variant=replace(chosen, packed=False))
                assert torch.equal(got, want), (rows, cols)
                error = (got.double() - exact(x, matrix)).norm() / exact(x, matrix).norm()
                assert error < (1e-5 if dtype == torch.float32 else 4e-3), (rows, cols, error)


@gpu
@needs_gpu
@pytest.mark.parametrize("tokens", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("cols", [4096, 14336])
def test_the_chosen_variant_is_right_and_repeats(tokens: int, cols: int) -> None:
    x, weight = inputs(tokens, 1000, cols, tokens)
    for matrix in (weight, pack(weight)):
        got = product(x, matrix, out_dtype=torch.float32)
        assert (got.double() - exact(x, weight)).norm() / exact(x, weight).norm() < 1e-5
        assert torch.equal(got, product(x, matrix, out_dtype=torch.float32))


@gpu
@needs_gpu
def test_a_token_does_not_depend_on_its_neighbours() -> None:
    x, weight = inputs(16, 4096, 4096, 1)
    packed = pack(weight)
    whole = product(x, packed)
    for first, last in ((0, 9), (3, 16), (5, 14)):
        assert torch.equal(product(x[first:last].contiguous(), packed), whole[first:last])


@gpu
@needs_gpu
@pytest.mark.parametrize("tokens", [1, 16, 32, 60])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_winners_are_the_lowest_rows_with_the_largest_value(tokens: int, dtype: torch.dtype) -> None:
    x, weight = inputs(tokens, 5003, 2048, 2)
    weight[4000:] = weight[:1003]
    best = torch.zeros(tokens, dtype=torch.int64, device="cuda")
    logits = product(x, pack(weight), out_dtype=dtype, best=best).cpu()
    first = (logits == logits.amax(1, keepdim=True)).to(torch.uint8).argmax(1)
    assert torch.equal(winners(best).cpu(), first)


@gpu
@needs_gpu
def test_the_gpu_packs_the_same_bytes() -> None:
    weight = spread(inputs(1, 500, 1000, 4)[1], 50)
    here, there = pack(weight), pack(weight.cpu())
    for name, part in there.parts().items():
        assert torch.equal(here.parts()[name].cpu(), part), name
    assert torch.equal(unpack(here).view(torch.int16), weight.view(torch.int16))
