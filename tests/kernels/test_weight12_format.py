"""The 12-bit format: every bit pattern survives, the side tables are what the document says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.weight12.format import (
    BLOCK_COLS,
    ESCAPE_MARK,
    TILE_ROWS,
    PackedMatrix,
    join,
    pack,
    plan_rows,
    row_chunks,
    unpack,
    unpack_rows,
)
from space.errors import EngineError


def bits(weight: torch.Tensor) -> torch.Tensor:
    return weight.view(torch.int16)


def from_bits(values: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    return values.to(torch.int16).reshape(rows, cols).view(torch.bfloat16)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and torch.equal(bits(left), bits(right))


def gaussian(rows: int, cols: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, cols, generator=generator) * 0.02).bfloat16()


@pytest.mark.parametrize("shape", [(256, 256), (1, 65536), (65536, 1), (16, 4096)])
def test_all_65536_patterns_return(shape: tuple[int, int]) -> None:
    weight = from_bits(torch.arange(65536), *shape)
    assert same_bits(unpack(pack(weight)), weight)


def test_all_patterns_return_in_shuffled_order_beside_ordinary_weights() -> None:
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(65536, generator=generator)
    weight = torch.cat([gaussian(256, 320), from_bits(order, 256, 256)], 1)
    assert same_bits(unpack(pack(weight)), weight)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    cols=st.integers(1, 150),
    seed=st.integers(0, 1 << 30),
    spread=st.sampled_from([0, 3, 14, 15, 16, 40, 255]),
    centre=st.integers(0, 255),
)
def test_any_matrix_returns(rows: int, cols: int, seed: int, spread: int, centre: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    low, high = max(centre - spread // 2, 0), min(centre + spread // 2, 255)
    exponent = torch.randint(low, high + 1, (rows, cols), generator=generator)
    other = torch.randint(0, 256, (rows, cols), generator=generator)
    weight = from_bits((other & 0x80) << 8 | exponent << 7 | other & 0x7F, rows, cols)
    assert same_bits(unpack(pack(weight)), weight)


@pytest.mark.parametrize(
    ("pattern", "escapes"),
    [
        (0x0000, False),  # zero
        (0x8000, False),  # minus zero
        (0x0001, True),  # smallest subnormal
        (0x807F, True),  # largest subnormal, negative
        (0x7F80, True),  # infinity
        (0xFF80, True),  # minus infinity
        (0x7FC0, True),  # quiet NaN
        (0x7F81, True),  # signalling NaN
        (0xFFFF, True),  # NaN with a full payload
        (0x7F7F, True),  # largest finite number: beyond the largest base
        (0x0080, True),  # smallest normal number: far from the rest of the row
    ],
)
def test_special_values_among_ordinary_ones(pattern: int, escapes: bool) -> None:
    weight = torch.full((3, 70), 0.5, dtype=torch.bfloat16)
    bits(weight)[1, 65] = pattern - 65536 if pattern > 32767 else pattern
    packed = pack(weight)
    assert packed.escapes.numel() == int(escapes)
    assert same_bits(unpack(packed), weight)


def test_a_row_of_zeros_and_a_row_of_tiny_numbers_need_no_escape() -> None:
    weight = gaussian(48, 64)
    weight[3] = 0
    weight[4, ::2] = -0.0
    weight[5] *= 2.0**-90
    packed = pack(weight)
    assert same_bits(unpack(packed), weight)
    assert packed.escape_share < 0.001


def test_base_is_the_lowest_that_lets_fewest_escape() -> None:
    exponent = torch.tensor([[100] * 10 + [101] * 5 + [116] * 3 + [90] * 3])
    plan = plan_rows(from_bits(exponent << 7, 1, 21))
    assert plan.base.item() == 86  # window 87..101: loses the three at 116, as 101..115 would lose more
    assert plan.escapes == 3


def test_planned_escapes_are_the_packed_ones() -> None:
    weight = from_bits(torch.arange(65536), 256, 256)
    assert plan_rows(weight).escapes == pack(weight).escapes.numel()


def test_packing_in_pieces_is_packing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = gaussian(100, 200)
    whole = pack(weight)
    monkeypatch.setattr("kernels.weight12.format.CHUNK_WEIGHTS", 200 * 32)
    assert [part.start for part in row_chunks(100, 200)] == [0, 32, 64, 96]
    pieces = pack(weight)
    for name, part in whole.parts().items():
        assert torch.equal(part, pieces.parts()[name]), name
    assert same_bits(unpack(pieces), weight)
    assert join([whole]) is whole


def test_layout_is_the_documented_one() -> None:
    """Decodes one weight at a time by the rules in docs/weight12.md, without the module's own code."""
    weight = gaussian(37, 130, seed=5)
    bits(weight)[20, 100] = 0x7FC1
    packed = pack(weight)
    base = packed.base.tolist()

    def field(row: int, col: int) -> int:
        tile, block = row // 16, col // 64
        r, c = row % 16, col % 64
        lane = (r % 8) * 4 + (c // 8) % 4
        fragment = 2 * (c // 32) + (c // 4) % 2
        register = r // 8 + 2 * ((c // 2) % 2)
        words = [packed.payload[tile, block, w // 4, lane, w % 4].item() & 0xFFFFFFFF for w in range(12)]
        w0, w1, w2 = words[3 * fragment : 3 * fragment + 3]
        if register < 3:
            pair = (w0, w1, w2)[register] & 0x87FF87FF
        else:
            rotated = (w2 << 4 | w2 >> 28) & 0xFFFFFFFF
            pair = (w0 >> 4 & 0x07800780) | (w1 >> 8 & 0x00780078) | (rotated & 0x80078007)
        return pair >> 16 * (c % 2) & 0xFFFF

    for row in range(37):
        for col in range(130):
            stored, true = field(row, col), bits(weight)[row, col].item() & 0xFFFF
            if (row, col) == (20, 100):
                assert stored == ESCAPE_MARK
            elif stored != ESCAPE_MARK:
                assert stored + (base[row] << 7) * (stored & 0x7FFF != 0) == true
    starts = packed.starts.tolist()
    block = 20 // 16 * packed.blocks + 100 // 64
    assert starts[block + 1] - starts[block] >= 1
    assert 0x7FC1 in [entry & 0xFFFF for entry in packed.escapes[starts[block] : starts[block + 1]].tolist()]


def test_padding_is_zero_and_stored_size_is_stated() -> None:
    packed = pack(gaussian(17, 65))
    assert packed.payload.shape == (2, 2, 3, 32, 4)
    assert packed.tiles * TILE_ROWS == 32
    assert packed.blocks * BLOCK_COLS == 128
    assert packed.nbytes == 2 * 2 * 1536 + 32 + 4 * 5 + 4 * packed.escapes.numel()


def test_ordinary_weights_take_twelve_bits() -> None:
    packed = pack(gaussian(256, 1024))
    assert packed.escape_share < 5e-4
    assert packed.nbytes * 8 / (256 * 1024) < 12.06


def test_rows_are_gathered() -> None:
    weight = gaussian(100, 96, seed=2)
    bits(weight)[50:60, 3] = 1
    packed = pack(weight)
    index = torch.tensor([99, 0, 55, 55, 17])
    assert same_bits(unpack_rows(packed, index), weight[index])


def test_a_packed_matrix_moves() -> None:
    packed = pack(gaussian(16, 64))
    moved = packed.to("cpu")
    assert isinstance(moved, PackedMatrix)
    assert moved.rows == 16


@pytest.mark.parametrize("weight", [torch.zeros(4), torch.zeros(4, 4), torch.zeros(0, 4, dtype=torch.bfloat16)])
def test_other_tensors_are_refused(weight: torch.Tensor) -> None:
    with pytest.raises(EngineError, match="takes bf16"):
        pack(weight)
