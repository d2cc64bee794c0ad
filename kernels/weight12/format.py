"""The bits of the 12-bit weight format: bf16 matrices in, packed matrices out, and back bit for bit.

A bf16 weight keeps its sign and its seven mantissa bits. Its exponent becomes a 4-bit code relative to a base that each
row has: code c in 1..15 means exponent base + c; code 0 with mantissa 0 is a zero of either sign. Everything else (an
exponent outside the window, subnormals, infinities, NaNs) is an escape: the field holds a marker and a side table the
sixteen original bits. `docs/weight12.md` explains the layout, which is the operand order of the tensor core instruction
m16n8k16, so that a GPU thread decodes straight into its own registers.

The idea of a fixed 4-bit exponent group with exact escapes is public (Split12, bf12). Zeros in band, three words that
hold four registers and the decode by one multiplication are this project's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from space.errors import EngineError

TILE_ROWS = 16
BLOCK_COLS = 64
BLOCK_WEIGHTS = TILE_ROWS * BLOCK_COLS
WINDOW = 15
MAX_BASE = 127  # the scale 2^base must be a finite bf16
ESCAPE_MARK = 1  # code 0 with a mantissa that no zero has
MAX_ESCAPE_SHARE = 0.005
CHUNK_WEIGHTS = 1 << 23  # weights packed at a time: bounds the extra memory

# Masks over a pair of weights in one 32-bit word, as signed int32 because torch has no unsigned shifts.
_FIELD = -0x78007801  # 0x87FF87FF: sign, 4-bit code, mantissa
_SPARE = 0x78007800  # the four bits of each half that a field leaves free
_HIGH = 0x07800780  # the parts of the fourth register of a fragment that travel in the free bits of the other three
_MIDDLE = 0x00780078
_LOW = -0x7FF87FF9  # 0x80078007


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMatrix:
    """A bf16 matrix [rows, cols] in 12 bits a weight, on one device.

    Attributes:
        rows: Rows of the matrix (output features).
        cols: Columns of the matrix (input features).
        payload: int32 [tiles, blocks, 3, 32, 4]: for each 16 x 64 block three 16-byte words of each of 32 lanes.
        base: uint8 [tiles * 16], the exponent base of each row.
        starts: int32 [tiles * blocks + 1], where the escapes of each block start.
        escapes: int32 [count], position in the block << 16 | the bf16 bits, in order of block and position.
    """

    rows: int
    cols: int
    payload: Tensor
    base: Tensor
    starts: Tensor
    escapes: Tensor

    @property
    def tiles(self) -> int:
        """Number of 16-row tiles."""
        return -(-self.rows // TILE_ROWS)

    @property
    def blocks(self) -> int:
        """Number of 64-column blocks in a tile."""
        return -(-self.cols // BLOCK_COLS)

    @property
    def escape_share(self) -> float:
        """Escapes per weight."""
        return self.escapes.numel() / (self.rows * self.cols)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is stored."""
        return sum(part.numel() * part.element_size() for part in self.parts().values())

    def parts(self) -> dict[str, Tensor]:
        """The stored tensors by name, in the order of the file."""
        return {"payload": self.payload, "base": self.base, "starts": self.starts, "escapes": self.escapes}

    def to(self, device: torch.device | str) -> "PackedMatrix":
        """Returns the matrix on another device."""
        moved = {name: part.to(device) for name, part in self.parts().items()}
        return PackedMatrix(rows=self.rows, cols=self.cols, **moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """What a first look at a matrix decides: the base of each row (uint8 [rows]) and how many weights escape."""

    base: Tensor
    escapes: int


def row_chunks(rows: int, cols: int) -> Iterator[slice]:
    """Cuts rows into slices of whole tiles with at most `CHUNK_WEIGHTS` weights (one tile at least)."""
    step = max(CHUNK_WEIGHTS // (max(cols, 1) * TILE_ROWS), 1) * TILE_ROWS
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def plan_rows(weight: Tensor) -> RowPlan:
    """Chooses each row's base, so that the fewest of its weights escape (the lowest such base).

    Args:
        weight: bf16 [rows, cols], small enough to hold four int64 copies; callers chunk by `row_chunks`.
    """
    bits = _bits(weight)
    rows = bits.shape[0]
    exponent = (bits >> 7) & 0xFF
    index = exponent.long() + 256 * torch.arange(rows, device=bits.device)[:, None]
    counts = torch.bincount(index.reshape(-1), minlength=256 * rows).reshape(rows, 256)
    sums = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
    inside = sums[:, WINDOW + 1 : WINDOW + 2 + MAX_BASE] - sums[:, 1 : 2 + MAX_BASE]
    best, base = inside.max(1)
    # torch.max promises no order among equals: take the first explicitly, so that every device packs the same bytes.
    base = (inside == best[:, None]).to(torch.uint8).argmax(1)
    zeros = int(((bits & 0x7FFF) == 0).sum())
    return RowPlan(base=base.to(torch.uint8), escapes=bits.numel() - zeros - int(best.sum()))


def pack(weight: Tensor) -> PackedMatrix:
    """Packs a bf16 matrix [rows, cols] on its own device; works for every bit pattern.

    Whether packing pays is the caller's question: compare `escape_share` with `MAX_ESCAPE_SHARE`.

    Raises:
        EngineError: The tensor is not a bf16 matrix with at least one weight.
    """
    if weight.ndim != 2 or weight.dtype != torch.bfloat16 or weight.numel() == 0:
        raise EngineError(
            f"cannot pack a {weight.dtype} tensor of shape {tuple(weight.shape)}: the 12-bit format takes bf16 "
            "matrices; keep this tensor as it is"
        )
    pieces = [pack_rows(weight[part], plan_rows(weight[part]).base) for part in row_chunks(*weight.shape)]
    return join(pieces)


def pack_rows(weight: Tensor, base: Tensor) -> PackedMatrix:
    """Packs rows with given bases (uint8 [rows]); the last tile and block are filled up with zeros."""
    rows, cols = weight.shape
    bits = _bits(weight)
    moved = bits - (base.to(torch.int16) << 7)[:, None]
    in_window = ((moved & 0x7800) == 0) & ((moved & 0x0780) != 0)
    zero = (bits & 0x7FFF) == 0
    field = torch.where(in_window, moved, torch.where(zero, bits, ESCAPE_MARK))
    place = (~(in_window | zero)).nonzero()
    field = torch.nn.functional.pad(field, (0, -cols % BLOCK_COLS, 0, -rows % TILE_ROWS))
    tiles, blocks = field.shape[0] // TILE_ROWS, field.shape[1] // BLOCK_COLS
    key = _escape_key(place[:, 0], place[:, 1], blocks)
    key, order = key.sort()
    value = bits[place[:, 0], place[:, 1]].long()[order] & 0xFFFF
    per_block = torch.bincount(key // BLOCK_WEIGHTS, minlength=tiles * blocks)
    return PackedMatrix(
        rows=rows,
        cols=cols,
        payload=_to_words(field.contiguous().view(torch.int32), tiles, blocks),
        base=torch.nn.functional.pad(base, (0, -rows % TILE_ROWS)),
        starts=torch.nn.functional.pad(per_block.cumsum(0), (1, 0)).to(torch.int32),
        escapes=((key % BLOCK_WEIGHTS) << 16 | value).to(torch.int32),
    )


def join(pieces: list[PackedMatrix]) -> PackedMatrix:
    """Stacks packed row ranges; all but the last must be whole tiles."""
    if len(pieces) == 1:
        return pieces[0]
    starts, offset = [pieces[0].starts[:1]], 0
    for piece in pieces:
        starts.append(piece.starts[1:] + offset)
        offset += piece.escapes.numel()
    return PackedMatrix(
        rows=sum(piece.rows for piece in pieces),
        cols=pieces[0].cols,
        payload=torch.cat([piece.payload for piece in pieces]),
        base=torch.cat([piece.base for piece in pieces]),
        starts=torch.cat(starts),
        escapes=torch.cat([piece.escapes for piece in pieces]),
    )


def unpack(packed: PackedMatrix) -> Tensor:
    """Returns the bf16 matrix [rows, cols], bit for bit what was packed."""
    out = torch.empty(packed.rows, packed.cols, dtype=torch.bfloat16, device=packed.payload.device)
    for part in row_chunks(packed.rows, packed.cols):
        tiles = torch.arange(part.start // TILE_ROWS, -(-part.stop // TILE_ROWS), device=out.device)
        out[part] = _unpack_tiles(packed, tiles)[: part.stop - part.start]
    return out


def unpack_rows(packed: PackedMatrix, index: Tensor) -> Tensor:
    """Returns the bf16 rows [len(index), cols] at the int64 positions `index`: an embedding look-up."""
    tiles, inverse = torch.unique(index // TILE_ROWS, return_inverse=True)
    return _unpack_tiles(packed, tiles)[inverse * TILE_ROWS + index % TILE_ROWS]


def _unpack_tiles(packed: PackedMatrix, tiles: Tensor) -> Tensor:
    """Decodes whole tiles: bf16 [len(tiles) * 16, cols]."""
    field = _from_words(packed.payload[tiles]).view(torch.int16)
    base = packed.base.reshape(-1, TILE_ROWS)[tiles].reshape(-1).to(torch.int16)
    bits = torch.where((field & 0x7FFF) == 0, field, field + (base << 7)[:, None])
    blocks = packed.blocks
    first, last = packed.starts[tiles * blocks].long(), packed.starts[(tiles + 1) * blocks].long()
    count = last - first
    # One entry an escape of these tiles: which tile it is in (`owner`), and its place in the table (`entry`).
    owner = torch.repeat_interleave(torch.arange(len(tiles), device=tiles.device), count)
    entry = torch.arange(len(owner), device=tiles.device) + (first - (count.cumsum(0) - count))[owner]
    block = torch.searchsorted(packed.starts.long(), entry, right=True) - 1 - tiles[owner] * blocks
    coded = packed.escapes[entry].long()
    row, col = _escape_place(coded >> 16)
    bits[owner * TILE_ROWS + row, block * BLOCK_COLS + col] = coded.to(torch.int16)
    return bits[:, : packed.cols].contiguous().view(torch.bfloat16)


def _bits(weight: Tensor) -> Tensor:
    return weight.contiguous().view(torch.int16)


def _escape_key(row: Tensor, col: Tensor, blocks: int) -> Tensor:
    """Block number * 1024 + register * 64 + half * 32 + lane, for rows and columns of a matrix."""
    block = row // TILE_ROWS * blocks + col // BLOCK_COLS
    row, col = row % TILE_ROWS, col % BLOCK_COLS
    fragment = col // 32 * 2 + col // 4 % 2
    register = fragment * 4 + col // 2 % 2 * 2 + row // 8
    lane = row % 8 * 4 + col // 8 % 4
    return block * BLOCK_WEIGHTS + register * 64 + col % 2 * 32 + lane


def _escape_place(position: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column in the block of a position from `_escape_key`."""
    lane, half, register = position % 32, position // 32 % 2, position // 64
    fragment = register // 4
    row = register % 2 * 8 + lane // 4
    return row, fragment // 2 * 32 + lane % 4 * 8 + fragment % 2 * 4 + register // 2 % 2 * 2 + half


def _to_words(pairs: Tensor, tiles: int, blocks: int) -> Tensor:
    """Fields in pairs (int32 [rows, cols / 2]) to the payload: four registers of a fragment become three words."""
    # tile, row half, row, block, k half, thread, fragment, k pair
    view = pairs.view(tiles, 2, 8, blocks, 2, 4, 2, 2)
    a0, a1, a2, a3 = view.permute(7, 1, 0, 3, 2, 5, 4, 6).reshape(4, tiles, blocks, 32, 4).unbind(0)
    low = a3 & _LOW
    words = (
        a0 | (a3 & _HIGH) << 4,
        a1 | (a3 & _MIDDLE) << 8,
        a2 | (low >> 4 & 0x0FFFFFFF) | low << 28,
    )
    return torch.stack(words, -1).view(tiles, blocks, 32, 3, 4).transpose(2, 3).contiguous()


def _from_words(payload: Tensor) -> Tensor:
    """The payload of some tiles back to fields in pairs: int32 [tiles * 16, cols / 2]."""
    tiles, blocks = payload.shape[:2]
    words = payload.transpose(2, 3).reshape(tiles, blocks, 8, 4, 2, 2, 3)
    w0, w1, w2 = words.unbind(-1)
    high, middle = (w0 & _SPARE) >> 4, (w1 & _SPARE) >> 8
    spare = w2 & _SPARE
    low = spare << 4 | (spare >> 28 & 0xF)
    registers = torch.stack((w0 & _FIELD, w1 & _FIELD, w2 & _FIELD, high | middle | low), -1)
    # tile, block, row, thread, k half, fragment, k pair, row half
    view = registers.view(tiles, blocks, 8, 4, 2, 2, 2, 2)
    return view.permute(0, 7, 2, 1, 4, 3, 5, 6).reshape(tiles * TILE_ROWS, blocks * BLOCK_COLS // 2)
