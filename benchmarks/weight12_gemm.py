"""Products of few rows with large matrices on one GPU: cuBLAS bf16 beside this project's bf16 and 12-bit kernels.

Run as `python -m benchmarks.weight12_gemm [--json FILE]` from the repository's root. Every figure is the median over
replays of a CUDA graph that walks over several copies of the matrix, together far larger than the L2 cache; the systems
take turns within one process. The byte floor is the time to read the stored matrix once at the bandwidth that a plain
read reaches in the same run.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from kernels.skinny import Variant, candidates, chip, product, winners
from kernels.weight12.format import PackedMatrix, pack
from kernels.weight12.linear import decode

SHAPES = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
TOKENS = [1, 8, 16, 32, 64]
WORKING_SET = 400_000_000  # bytes of packed copies, against 60 MB of L2
CALL_BYTES = 2_500_000_000  # bytes that one replay reads
REPLAYS = 9
COLUMNS = (
    "N x K | rows | cuBLAS bf16 us | our bf16 us | ratio | w12 us | ratio | TB/s | time / floor | spread | variant"
)


class Timed:
    """A function captured in a graph of `count` calls, and its times in microseconds a call."""

    def __init__(self, name: str, call: Callable[[int], object], count: int) -> None:
        self.name, self.count = name, count
        self.times: list[float] = []
        call(0)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(count):
                call(i)
        self.graph.replay()

    def replay(self) -> None:
        """Takes one sample."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        self.times.append(begin.elapsed_time(end) * 1e3 / self.count)

    @property
    def median(self) -> float:
        """Microseconds a call."""
        return statistics.median(self.times)

    @property
    def spread(self) -> float:
        """Median absolute deviation over the median."""
        return statistics.median(abs(t - self.median) for t in self.times) / self.median


def take_turns(systems: list[Timed]) -> None:
    """Samples all systems in turn."""
    for _ in range(REPLAYS):
        for system in systems:
            system.replay()


def read_bandwidth() -> float:
    """Bytes a second of summing 4 GiB."""
    data = torch.empty(1 << 29, dtype=torch.int64, device="cuda").random_()
    timed = Timed("read", lambda i: data.sum(), 4)
    take_turns([timed])
    return data.nbytes / timed.median * 1e6


def describe(variant: Variant) -> str:
    """A variant in a few letters: warps, stages, slices of the columns."""
    return f"{'wide' if variant.wide else 'narrow'} w{variant.warps} s{variant.stages} k{variant.slices}"


def measure(dense: list[torch.Tensor], packed: list[PackedMatrix], tokens: int) -> dict[str, list[Timed]]:
    """Times of cuBLAS, w12 and bf16 for one shape; of ours the chosen variant first, then other candidates."""
    (rows, cols), copies = dense[0].shape, len(dense)
    x = torch.randn(tokens, cols, device="cuda").bfloat16()
    y = torch.empty(tokens, rows, dtype=torch.bfloat16, device="cuda")
    count = max(copies, min(128, CALL_BYTES // packed[0].nbytes))
    systems = {"cublas": [Timed("cublas", lambda i: torch.mm(x, dense[i % copies].t(), out=y), count)]}

    def ours(weights: list[torch.Tensor] | list[PackedMatrix], variant: Variant, i: int) -> None:
        product(x, weights[i % copies], out=y, variant=variant)

    for name, weights in (("w12", packed), ("bf16", dense)):
        variants = candidates(packed=name == "w12", tokens=tokens, rows=rows, cols=cols, chip=chip(0))
        systems[name] = [Timed(describe(v), partial(ours, weights, v), count) for v in variants]
    take_turns([system for group in systems.values() for system in group])
    return systems


def row_of_table(shape: str, tokens: int, systems: dict[str, list[Timed]], nbytes: int, floor: float) -> str:
    """One line of the main table, with the other candidates as a comment behind it."""
    cublas, w12, bf16 = (systems[name][0] for name in ("cublas", "w12", "bf16"))
    cells = [
        shape,
        f"{tokens}",
        f"{cublas.median:.1f}",
        f"{bf16.median:.1f}",
        f"{cublas.median / bf16.median:.2f}",
        f"{w12.median:.1f}",
        f"{cublas.median / w12.median:.2f}",
        f"{nbytes / w12.median / 1e6:.2f}",
        f"{w12.median / floor:.2f}",
        f"{max(cublas.spread, w12.spread):.3f}",
        w12.name,
    ]
    others = [f"{kind} {s.name} {s.median:.1f}" for kind in ("w12", "bf16") for s in systems[kind][1:]]
    return f"| {' | '.join(cells)} | <!-- {'; '.join([f'bf16 is {bf16.name}', *others])} -->"


def head_rows(dense: list[torch.Tensor], packed: list[PackedMatrix]) -> list[str]:
    """Logits and their argmax: cuBLAS and torch beside the fused product."""
    lines = ["\nhead + argmax | cuBLAS us | w12 us | ratio", "|---|---|---|---|"]
    for tokens in TOKENS:
        x = torch.randn(tokens, dense[0].shape[1], device="cuda").bfloat16()
        best = torch.zeros(tokens, dtype=torch.int64, device="cuda")

        def stock(i: int, x: torch.Tensor = x) -> object:
            return torch.mm(x, dense[i % len(dense)].t()).argmax(1)

        def fused(i: int, x: torch.Tensor = x, best: torch.Tensor = best) -> object:
            best.zero_()
            product(x, packed[i % len(packed)], best=best)
            return winners(best)

        pair = [Timed("cublas", stock, 8), Timed("w12", fused, 8)]
        take_turns(pair)
        a, b = (system.median for system in pair)
        lines.append(f"| {tokens} | {a:.1f} | {b:.1f} | {a / b:.2f} |")
    return lines


def decode_row(packed: list[PackedMatrix]) -> str:
    """The whole matrix back to bf16, as products with many rows need it."""
    out = torch.empty(packed[0].rows, packed[0].cols, dtype=torch.bfloat16, device="cuda")
    timed = Timed("decode", lambda i: decode(packed[i % len(packed)], out), 8)
    take_turns([timed])
    moved = packed[0].nbytes + out.nbytes
    return f"<!-- decode of the whole matrix {timed.median:.1f} us, {moved / timed.median / 1e6:.2f} TB/s moved -->"


def main() -> None:
    """Prints the tables as markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write every sample here")
    path = parser.parse_args().json
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"plain read {bandwidth / 1e12:.2f} TB/s; medians of {REPLAYS}, spread = MAD / median\n")
    print(f"| {COLUMNS} |\n{'|---' * len(COLUMNS.split('|'))}|")
    samples = {}
    for rows, cols in SHAPES:
        copies = max(2, -(-WORKING_SET // (rows * cols * 3 // 2)))
        dense = [(torch.randn(rows, cols, device="cuda") * 0.02).bfloat16() for _ in range(copies)]
        packed = [pack(weight) for weight in dense]
        floor = packed[0].nbytes / bandwidth * 1e6
        for tokens in TOKENS:
            systems = measure(dense, packed, tokens)
            groups = systems.items()
            samples[f"{rows}x{cols} {tokens}"] = {f"{k} {s.name}": s.times for k, group in groups for s in group}
            print(row_of_table(f"{rows} x {cols}", tokens, systems, packed[0].nbytes, floor), flush=True)
        print(decode_row(packed), flush=True)
        if (rows, cols) == SHAPES[-1]:
            print("\n".join(head_rows(dense, packed)))
        del dense, packed, systems
        torch.cuda.empty_cache()
    if path:
        path.write_text(json.dumps(samples))


if __name__ == "__main__":
    main()
