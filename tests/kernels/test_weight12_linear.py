"""Products and look-ups of packed matrices: the CPU path here, the GPU kernels where there is one."""

import pytest
import torch

from kernels.weight12.format import pack, unpack, unpack_rows
from kernels.weight12.linear import decode, embedding, gather, linear
from space.errors import EngineError

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def gaussian(rows: int, cols: int, device: str = "cpu") -> torch.Tensor:
    generator = torch.Generator(device=device).manual_seed(rows + cols)
    return (torch.randn(rows, cols, generator=generator, device=device) * 0.02).bfloat16()


@pytest.mark.parametrize("shape", [(5, 96), (2, 3, 96), (96,)])
def test_linear_is_the_dense_product(shape: tuple[int, ...]) -> None:
    weight, x = gaussian(50, 96), torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(linear(x, pack(weight)), x @ weight.T)


def test_embedding_is_indexing() -> None:
    weight = gaussian(50, 96)
    index = torch.tensor([[3, 49], [0, 3]])
    assert torch.equal(embedding(index, pack(weight)), weight[index])


@pytest.mark.parametrize("row", [-1, 50])
def test_an_embedding_refuses_rows_that_it_has_not(row: int) -> None:
    with pytest.raises(EngineError, match="outside the 50 rows"):
        embedding(torch.tensor([0, row]), pack(gaussian(50, 96)))


@gpu
@needs_gpu
@pytest.mark.parametrize(("rows", "cols"), [(16, 64), (1000, 1000), (33, 8), (5003, 2120), (20, 30)])
def test_gpu_kernels_equal_their_references(rows: int, cols: int) -> None:
    weight = gaussian(rows, cols, "cuda")
    weight.view(-1)[::97] = float("nan")
    weight.view(-1)[1::89] = 0
    weight.view(-1)[2::83] *= 2.0**-30
    packed = pack(weight)
    index = torch.randint(0, rows, (70,), device="cuda")
    if cols % 8 == 0:
        out = torch.full((rows, cols), 7.0, dtype=torch.bfloat16, device="cuda")
        assert torch.equal(decode(packed, out).view(torch.int16), unpack(packed).view(torch.int16))
        assert torch.equal(gather(packed, index).view(torch.int16), unpack_rows(packed, index).view(torch.int16))
    assert torch.equal(unpack(packed).view(torch.int16), weight.view(torch.int16))
    assert torch.equal(embedding(index, packed).view(torch.int16), weight[index].view(torch.int16))


@gpu
@needs_gpu
@pytest.mark.parametrize("tokens", [1, 64, 65, 300])
def test_gpu_linear_is_close_to_the_exact_product(tokens: int) -> None:
    weight = gaussian(1000, 512, "cuda")
    x = torch.randn(tokens, 512, device="cuda").bfloat16()
    want = x.double() @ weight.double().T
    assert (linear(x, pack(weight)).double() - want).norm() / want.norm() < 4e-3


@gpu
@needs_gpu
def test_gpu_linear_runs_in_a_graph() -> None:
    packed = pack(gaussian(1000, 512, "cuda"))
    x = torch.randn(7, 512, device="cuda").bfloat16()
    index = torch.randint(0, 1000, (7,), device="cuda")
    want, rows = linear(x, packed), embedding(index, packed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got, found = linear(x, packed), embedding(index, packed)
    graph.replay()
    assert torch.equal(got, want)
    assert torch.equal(found, rows)
