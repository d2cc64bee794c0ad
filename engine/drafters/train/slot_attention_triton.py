"""`slot_attention` as one Triton kernel: online softmax, one program a slot and kv head, cached rows read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16  # the least rows of a matrix instruction; a group has fewer query heads, the rest is padding
_BLOCK = 64


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    positions,
    out,
    length,
    scale,
    kv_heads: tl.constexpr,
    groups: tl.constexpr,
    size: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
):
    pair = tl.program_id(0) * kv_heads + tl.program_id(1)
    last = tl.load(positions + tl.program_id(0))
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, size)[None, :]
    places = (pair * groups + row) * size + column
    q = tl.load(queries + places, mask=row < groups, other=0.0)
    base = pair.to(tl.int64) * length * size
    high = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    mixed = tl.zeros([rows, size], tl.float32)
    for start in range(0, last + 1, block):
        at = start + tl.arange(0, block)
        cached = base + at[:, None] * size + column
        k = tl.load(keys + cached, mask=at[:, None] <= last, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(at[None, :] <= last, scores, float("-inf"))
        higher = tl.maximum(high, tl.max(scores, 1))
        share = tl.exp(scores - higher[:, None])
        fade = tl.exp(high - higher)
        total = total * fade + tl.sum(share, 1)
        v = tl.load(values + cached, mask=at[:, None] <= last, other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(share.to(v.dtype), v)
        high = higher
    mixed = mixed / total[:, None]
    tl.store(out + places, mixed.to(out.dtype.element_ty), mask=row < groups)


def fused_slot_attention(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """See `slot_attention`; at most 16 query heads a kv head, size a power of two of at least 16."""
    slots, kv_heads, groups, size = queries.shape
    out = torch.empty_like(queries, memory_format=torch.contiguous_format)
    _kernel[(slots, kv_heads)](
        queries.contiguous(),
        keys,
        values,
        positions,
        out,
        keys.shape[2],
        size**-0.5,
        kv_heads=kv_heads,
        groups=groups,
        size=size,
        rows=_ROWS,
        block=_BLOCK,
        num_warps=4,
    )
    return out
