"""Writes many texts at once: a fixed number of slots, one token a slot and step, finished slots take the next prompt.

The whole step, refill included, lives on the device: on a GPU it is one CUDA graph and the host only replays it.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.drafters.train.target import SlotCache, Target

_LOOK_EVERY = 64  # steps between two looks at the device's progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a text is continued: greedily at temperature 0, else sampled above min_p times the best probability."""

    max_new: int
    stop: int
    temperature: float = 0.0
    min_p: float = 0.0


class SlotGenerator:
    """Continues prompts. Tokens of a prompt are fed one by one; what all prompts share is fed once a slot."""

    def __init__(self, target: Target, prompts: Sequence[Sequence[int]], decoding: Decoding, slots: int) -> None:
        self._target, self._decoding, self._count = target, decoding, len(prompts)
        device = target.device
        longest = max(len(p) for p in prompts)
        width = math.ceil((longest + decoding.max_new) / 8) * 8  # attention masks want rows of a multiple of 8
        slots = min(slots, len(prompts))
        # One row more than prompts: slots that run dry write there. It is as long as the shared prefix and one token.
        self._shared = min(_shared_prefix(prompts), min(len(p) for p in prompts) - 1)
        grid = torch.zeros(self._count + 1, width, dtype=torch.int32)
        sizes = torch.full((self._count + 1,), self._shared + 1)
        for row, prompt in enumerate(prompts):
            grid[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
            sizes[row] = len(prompt)
        self._grid, self._sizes = grid.to(device), sizes.to(device)
        self._ends = torch.zeros_like(self._sizes)
        self._cache = SlotCache(target, slots, width)
        self._row = torch.arange(slots, device=device)
        self._position = torch.zeros(slots, dtype=torch.long, device=device)
        self._next = torch.tensor(slots, device=device)

    def run(self, deadline: float = math.inf) -> list[list[int]]:
        """Continuations in the prompts' order, a stop token included.

        Past `deadline` (time.monotonic seconds) the unfinished ones are given up and come back empty.
        """
        step = self._captured() if self._target.device.type == "cuda" else self._step
        while int((self._ends[:-1] > 0).sum()) < self._count and time.monotonic() < deadline:
            for _ in range(_LOOK_EVERY):
                step()
        grid, sizes, ends = self._grid.cpu(), self._sizes.tolist(), self._ends.tolist()
        return [grid[i, sizes[i] : ends[i]].tolist() for i in range(self._count)]

    def _captured(self) -> Callable[[], None]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # these are real steps too
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay

    def _choose(self, logits: Tensor) -> Tensor:
        d = self._decoding
        if d.temperature == 0:
            return logits.argmax(-1)
        scaled = logits.float() / d.temperature
        floor = scaled.max(-1, keepdim=True).values + math.log(d.min_p) if d.min_p else -math.inf
        noise = torch.empty_like(scaled).exponential_().log_()  # Gumbel-max: the winner is a sample of the softmax
        return torch.where(scaled >= floor, scaled - noise, -math.inf).argmax(-1)

    @torch.no_grad()
    def _step(self) -> None:
        row, position, d = self._row, self._position, self._decoding
        logits = self._target.decode(self._grid[row, position].long(), position, self._cache)
        ahead, sizes = position + 1, self._sizes[row]
        given = ahead < sizes
        token = torch.where(given, self._grid[row, ahead].long(), self._choose(logits))
        self._grid[row, ahead] = token.int()
        done = ~given & ((token == d.stop) | (ahead - sizes + 1 >= d.max_new))
        self._ends[row] = torch.where(done, ahead + 1, self._ends[row])
        refill = (self._next + done.cumsum(0) - 1).clamp(max=self._count)
        self._row.copy_(torch.where(done, refill, row))
        self._position.copy_(torch.where(done, self._shared, ahead))
        self._next.add_(done.sum())


def _shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    for i, column in enumerate(zip(*prompts, strict=False)):
        if len(set(column)) > 1:
            return i
    return min(len(p) for p in prompts)
