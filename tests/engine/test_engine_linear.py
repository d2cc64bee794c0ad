"""Matrix products: the packed layout gives the plain one's bits; one row gives those of many."""

import pytest
import torch

from engine.models.linear import Linear
from space.errors import EngineError

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN: nothing can be packed"
)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@needs_onednn
@pytest.mark.parametrize(("outs", "ins"), [(128, 64), (258, 64), (64, 160), (192, 576), (96, 1536)])
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33])
def test_packed_equals_plain_bit_for_bit(outs, ins, rows):
    linear, x = Linear(random(outs, ins)), random(rows, ins, seed=1)
    linear.use("plain")
    plain = linear(x)
    linear.use("packed")
    packed = linear(x)
    assert packed.dtype == plain.dtype == torch.bfloat16
    assert torch.equal(packed, plain)
    linear.use("plain")
    assert torch.equal(linear(x), plain)


@pytest.mark.parametrize("ins", [64, 576, 1025, 1536])
def test_products_are_right(ins):
    linear, x = Linear(random(40, ins)), random(3, ins, seed=1)
    expected = x.double() @ linear.weight.double().T
    torch.testing.assert_close(linear(x).double(), expected, atol=0.05, rtol=0.01)
    torch.testing.assert_close(linear(x[:1]).double(), expected[:1], atol=0.05, rtol=0.01)
    assert linear(x[:1]).shape == (1, 40)


@pytest.mark.parametrize("path", ["int8", "", "Packed"])
def test_an_unknown_path_is_refused(path):
    linear = Linear(random(8, 8))
    with pytest.raises(EngineError, match=f"linear_path {path!r}: allowed is plain or packed"):
        linear.use(path)


def test_packed_without_onednn_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(EngineError, match="'packed' needs a torch build with oneDNN; use 'plain'"):
        Linear(random(8, 8)).use("packed")
