"""What this processor attains with the engine's own operations: the figures of a measured hardware profile."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.models.linear import Linear

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_READ_BYTES = 256 << 20
_CHAIN = 200
_BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Bytes a second of a plain read; weight bytes a second of the linear layers by rows; seconds an operator.

    `matrix_rate` is the FLOP/s of the linear layers at the largest row count.
    """

    read_bandwidth: float
    rows: tuple[tuple[int, float], ...]
    matrix_rate: float
    operator_seconds: float


def _fastest(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Seconds of each run at its fastest, in turns: what is slower was disturbed by something else."""
    seconds = [math.inf] * len(runs)
    for run in runs:
        run()
    for _ in range(repeats):
        for index, run in enumerate(runs):
            started = time.perf_counter()
            run()
            seconds[index] = min(seconds[index], time.perf_counter() - started)
    return seconds


@torch.inference_mode()
def probe(
    shapes: Sequence[tuple[int, int]],
    *,
    threads: int,
    linear_path: str,
    row_counts: Sequence[int] = ROW_COUNTS,
    read_bytes: int = _READ_BYTES,
    repeats: int = 12,
) -> Probe:
    """Measures on random weights.

    Args:
        shapes: [out, in] of every linear layer of a model, in the order of a step, so that caches see what they would.
        threads: threads of the matrix products.
        linear_path: `plain` or `packed`, see engine.models.linear.
        row_counts: rows of the passes that are timed, rising.
        read_bytes: size of the plain read; well beyond the caches.
        repeats: each figure is the fastest of so many, after one that does not count.
    """
    torch.set_num_threads(threads)
    block = torch.ones(read_bytes // 4)
    layers = [Linear(torch.randn(shape).to(torch.bfloat16)) for shape in shapes]
    for layer in layers:
        layer.use(linear_path)
    weights = sum(out * inner for out, inner in shapes)
    row = torch.ones(1, shapes[0][1], dtype=torch.bfloat16)
    gain = torch.ones(shapes[0][1], dtype=torch.bfloat16)

    def chain() -> None:
        for _ in range(_CHAIN):
            functional.rms_norm(row, gain.shape, gain)

    reading, chained, *passes = _fastest([block.sum, chain, *(_pass(layers, rows) for rows in row_counts)], repeats)
    timed = list(zip(row_counts, passes, strict=True))
    return Probe(
        read_bandwidth=read_bytes / reading,
        rows=tuple((rows, weights * _BF16 / seconds) for rows, seconds in timed),
        matrix_rate=max(2.0 * weights * rows / seconds for rows, seconds in timed),
        operator_seconds=chained / _CHAIN,
    )


def _pass(layers: Sequence[Linear], rows: int) -> Callable[[], object]:
    inputs = {layer.weight.shape[1]: torch.ones(rows, layer.weight.shape[1], dtype=torch.bfloat16) for layer in layers}
    return lambda: [layer(inputs[layer.weight.shape[1]]) for layer in layers]
