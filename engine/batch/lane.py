"""Requests that share a target pass, and where their drafts are made: at once, or beside another lane's pass.

Pipelined, there are two lanes, each with half of the requests: while the target verifies one, the other is drafted in
a thread. That hides drafting behind verification. It can gain at most the share of a step that drafting takes, and it
reads the weights once for each half. On a CPU the two also share cores and memory: automata in Python, which wait for
nothing but the interpreter, run beside a matrix product; a neural drafter's matrix products compete with the target's,
so that the halves usually lose there. It pays where drafting and verification have processors of their own.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

import torch

from engine.batch.slot import Slot

Submit: TypeAlias = Callable[[Callable[[], float]], "Future[float]"]
"""Runs a drafting, in a thread or at once."""


def at_once(work: Callable[[], float]) -> "Future[float]":
    """Drafts now."""
    future: Future[float] = Future()
    future.set_result(work())
    return future


class Lane:
    """The slots of one target pass. A draft depends on its own request only, so threads cannot change any."""

    def __init__(self, submit: Submit) -> None:
        """An executor's submit, or `at_once`."""
        self.slots: list[Slot] = []
        self._submit = submit
        self._drafting: Future[float] | None = None

    @property
    def drafted(self) -> bool:
        """True when drafts were begun for the next pass."""
        return self._drafting is not None

    def begin(self, longest: int) -> None:
        """Begins to draft at most `longest` tokens for every slot."""
        self._drafting = self._submit(lambda: _draft(self.slots, longest))

    def take(self) -> float:
        """Waits for the drafts, which the slots keep; returns the seconds that drafting took."""
        assert self._drafting is not None, "drafting was not begun"
        drafting, self._drafting = self._drafting, None
        return drafting.result()

    def remove(self, slot: Slot) -> None:
        """Removes a slot; not before its drafting has ended."""
        if self._drafting is not None:
            self._drafting.result()
        self.slots.remove(slot)


@torch.inference_mode()
def _draft(slots: list[Slot], longest: int) -> float:
    started = time.perf_counter()
    for slot in slots:
        slot.draft(longest)
    return time.perf_counter() - started
