"""What a system attains of a device: shares of its peaks, launches and host time. One profile a system.

Constants of `stock-vllm` come from vLLM 0.23.0 on one H200; docs/cost-model.md has the figures and how each was fitted.
They are shares and counts, so that they carry over to another device as a first guess; measure there to know.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

Curve = tuple[tuple[int, float], ...]
"""(rows, factor) points, rows rising; between them linear, outside them the nearest point."""

FLAT: Curve = ((1, 1.0),)


def on_curve(curve: Curve, rows: float) -> float:
    """The factor at this many rows."""
    if rows <= curve[0][0]:
        return curve[0][1]
    for (low, before), (high, after) in zip(curve, curve[1:], strict=False):
        if rows <= high:
            return before + (after - before) * (rows - low) / (high - low)
    return curve[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """How one system runs a step.

    read_share, matrix_share: what matrix kernels attain of the device's read bandwidth and matrix rate.
    kv_share: what attention kernels attain of the read bandwidth.
    weight_bytes: bytes a weight over those of bf16.
    matrix_factor: time of the matrix products over that of the library's for the same bytes, by rows.
    matrix_kernels, small_kernels: launches a layer; `matrix_launch` and `small_launch` are what one costs, in the
        device's launch times.
    logits_passes: how often fp32 logits travel to or from memory a step.
    host: seconds a step in which the device waits; `host_row` a request and step; `speculation_host` more a step when
        it drafts.
    sizes: row counts that a step may have (captured graphs); rows are filled up to the next. Empty: any count.
    halves: the batch runs as two halves, one drafting while the other is verified.
    """

    name: str
    read_share: float
    matrix_share: float
    kv_share: float
    weight_bytes: float = 1.0
    matrix_factor: Curve = FLAT
    matrix_kernels: int = 4
    small_kernels: float = 5.0
    matrix_launch: float = 1.0
    small_launch: float = 1.0
    logits_passes: float = 2.0
    host: float = 0.0
    host_row: float = 0.0
    speculation_host: float = 0.0
    sizes: Sequence[int] = ()
    halves: bool = False

    def padded(self, rows: int) -> int:
        """The next captured row count; beyond the largest the rows run as they are."""
        return next((size for size in self.sizes if size >= rows), rows)


VLLM_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""The default capture sizes of vLLM: 1, 2, 4, multiples of 8, and of 16 from 256 to 512."""

STOCK_VLLM = Overheads(
    name="stock-vllm",
    read_share=0.75,
    matrix_share=0.70,
    kv_share=0.60,
    matrix_launch=1.33,
    small_launch=1.33,
    host_row=5.2e-6,
    speculation_host=0.465e-3,
    sizes=VLLM_SIZES,
)

IDEAL = Overheads(
    name="ideal",
    read_share=1.0,
    matrix_share=1.0,
    kv_share=1.0,
    matrix_launch=0.0,
    small_launch=0.0,
    logits_passes=0.0,
)
"""The roofline itself: peaks attained, nothing launched, no host."""

ENGINE_CPU = Overheads(
    name="ours-cpu",
    read_share=1.0,
    matrix_share=1.0,
    kv_share=1.0,
    small_kernels=16.0,
    matrix_launch=1.0,
    small_launch=1.0,
    logits_passes=2.0,
)
"""This project's engine on a CPU: the measured row curve of a profile is its own, operators a layer are counted."""

SYSTEMS = MappingProxyType({system.name: system for system in (STOCK_VLLM, ENGINE_CPU, IDEAL)})
