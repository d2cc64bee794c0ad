"""The batched step: requests join, each drafts, one target pass verifies the rows of all, requests leave.

What a request says does not depend on the others: rows of the packed pass are independent of each other, each request
has its own cache, drafter and random numbers, and what the batch decides together (how long to draft, which nodes to
verify) decides when tokens come, never which.
"""

import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import torch

from engine.base import Generation, Request, Settings
from engine.batch.acceptance import Acceptance
from engine.batch.lane import Lane, at_once
from engine.batch.log import BatchLog
from engine.batch.packing import Node, pack, row_cost
from engine.batch.schedule import LengthSchedule
from engine.batch.slot import Slot
from engine.cache import KVCache
from engine.drafters import make_drafter
from engine.drafters.checkpoint import DraftModel
from engine.models.llama import Llama
from space.errors import EngineError

PACKINGS = ("all", "survival")
SCHEDULES = ("fixed", "load")
PIPELINES = ("off", "halves")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGeneration:
    """The answers, in the order of the requests, and the log of the passes."""

    generations: tuple[Generation, ...]
    log: BatchLog


class BatchDecoder:
    """Decodes several requests at a time on one model."""

    def __init__(self, model: Llama, max_context: int, slots: int, checkpoint: DraftModel | None = None) -> None:
        """Takes a loaded model, the longest sequence in tokens, most requests at a time, and a drafter checkpoint.

        Raises:
            EngineError: the model has fewer positions, or there is no slot.
        """
        if max_context > model.config.max_position:
            raise EngineError(f"max_context {max_context}: this model has {model.config.max_position} positions")
        if slots < 1:
            raise EngineError(f"slots {slots}: a batch has at least one")
        self.model = model
        self.max_context = max_context
        self.slots = slots
        self.checkpoint = checkpoint

    def generate(self, requests: Sequence[Request], settings: Settings) -> BatchGeneration:
        """Decodes requests that arrive together; those that find no free slot wait for one, in order."""
        with self.open(settings) as batch:
            tickets = [batch.join(request) for request in requests]
            answers: dict[int, Generation] = {}
            while batch.busy:
                answers |= batch.step()
            return BatchGeneration(generations=tuple(answers[ticket] for ticket in tickets), log=batch.log)

    def open(self, settings: Settings) -> "Batch":
        """A batch without requests. One at a time on a model: threads and weight layout are the settings'."""
        return Batch(self, settings)


class Batch:
    """Requests being decoded. They join and leave between steps; close it (or use `with`) when done."""

    def __init__(self, decoder: BatchDecoder, settings: Settings) -> None:
        """EngineError where the settings name a way of batching that is not there."""
        for key, name, known in (
            ("packing", settings.packing, PACKINGS),
            ("length_schedule", settings.length_schedule, SCHEDULES),
            ("pipeline", settings.pipeline, PIPELINES),
        ):
            if name not in known:
                raise EngineError(f"{key} {name!r} is not there; known: {', '.join(known)}")
        self.log = BatchLog()
        self._decoder = decoder
        self._settings = settings
        self._acceptance = Acceptance()
        self._schedule = (
            LengthSchedule(settings.draft_length, settings.schedule_cost, settings.hysteresis)
            if settings.length_schedule == "load"
            else None
        )
        self._waiting: deque[tuple[int, Request]] = deque()
        self._tickets = 0
        self._finished: dict[int, Generation] = {}
        self._prefilled = (0, 0.0)
        self._turn = 0
        self._thread = ThreadPoolExecutor(1, "draft") if settings.pipeline == "halves" else None
        submit = self._thread.submit if self._thread is not None else at_once
        self._lanes = [Lane(submit) for _ in range(1 if self._thread is None else 2)]
        torch.set_num_threads(settings.threads)
        decoder.model.use(settings.linear_path)

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the drafting thread."""
        if self._thread is not None:
            self._thread.shutdown()

    @property
    def busy(self) -> bool:
        """True while a request waits, is being decoded, or has an answer that no step has returned yet."""
        return bool(self._waiting or self._finished or any(lane.slots for lane in self._lanes))

    def join(self, request: Request) -> int:
        """Takes a request, which begins at one of the next steps; returns its ticket.

        Raises:
            EngineError: the prompt is empty, max_tokens is below one, or both do not fit max_context.
        """
        request.check(self._decoder.max_context)
        self._tickets += 1
        self._waiting.append((self._tickets, request))
        return self._tickets

    def leave(self, ticket: int) -> None:
        """Gives a request up, whether it waits or is being decoded. EngineError for one that is not there."""
        for entry in self._waiting:
            if entry[0] == ticket:
                self._waiting.remove(entry)
                return
        for lane in self._lanes:
            for slot in lane.slots:
                if slot.ticket == ticket:
                    lane.remove(slot)
                    return
        raise EngineError(f"request {ticket} is not in this batch: it has finished or has left")

    @torch.inference_mode()
    def step(self) -> dict[int, Generation]:
        """One target pass. Returns the answers that have become complete, by ticket."""
        lane = self._next_lane()
        if lane is not None:
            started = time.perf_counter()
            drafting = lane.take()
            waited = time.perf_counter() - started
            if len(self._lanes) > 1:
                self._begin(self._lanes[self._turn])  # is drafted while this lane is verified
            self._verify(lane, drafting, waited if len(self._lanes) > 1 else drafting)
        finished, self._finished = self._finished, {}
        return finished

    def _next_lane(self) -> Lane | None:
        """The lane whose turn it is, its drafting begun; the other one where it has no requests."""
        for _ in self._lanes:
            lane = self._lanes[self._turn]
            self._turn = (self._turn + 1) % len(self._lanes)
            if not lane.drafted:
                self._begin(lane)
            if lane.slots:
                return lane
            lane.take()
        return None

    def _begin(self, lane: Lane) -> None:
        """Fills a lane's free slots from those that wait, and begins to draft."""
        self._fill(lane)
        longest = self._settings.draft_length
        if self._schedule is not None and lane.slots:
            longest = self._schedule.length(len(lane.slots), self._acceptance)
        lane.begin(longest)

    def _fill(self, lane: Lane) -> None:
        started, rows = time.perf_counter(), 0
        settings, decoder = self._settings, self._decoder
        there = sum(len(each.slots) for each in self._lanes)
        share = -(-min(there + len(self._waiting), decoder.slots) // len(self._lanes))
        while self._waiting and len(lane.slots) < share and there < decoder.slots:
            ticket, request = self._waiting.popleft()
            cache = KVCache(decoder.model.config, decoder.max_context)
            drafter = make_drafter(settings, decoder.checkpoint)
            slot = Slot(ticket, request, cache, drafter, Acceptance(self._acceptance))
            slot.start(decoder.model, settings.prefill_chunk)
            rows += len(request.prompt)
            if slot.finished:
                self._finished[ticket] = slot.generation()
            else:
                lane.slots.append(slot)
                there += 1
        if rows:
            self._prefilled = self._prefilled[0] + rows, self._prefilled[1] + time.perf_counter() - started

    def _verify(self, lane: Lane, draft_seconds: float, wait_seconds: float) -> None:
        started = time.perf_counter()
        model, slots, log = self._decoder.model, lane.slots, self.log
        log.requests.append(len(slots))
        log.drafted.append(sum(slot.drafted for slot in slots))
        log.context.append(sum(slot.cache.length for slot in slots))
        parts = [slot.rows(nodes) for slot, nodes in zip(slots, self._admitted(slots), strict=True)]
        hidden, tapped = model.forward_packed(parts, slots[0].taps)
        logits = model.logits(hidden)
        accepted, start = 0, 0
        for slot, part in zip(slots, parts, strict=True):
            own = slice(start, start + len(part.tokens))
            accepted += slot.commit(logits[own], tapped[own] if tapped is not None else None)
            start = own.stop
        seconds = time.perf_counter() - started
        for slot in slots:
            slot.record(wait_seconds / len(slots), seconds / len(slots))
        log.rows.append(start)
        log.nodes.append(start - len(slots))
        log.accepted.append(accepted)
        log.draft_seconds.append(draft_seconds)
        log.wait_seconds.append(wait_seconds)
        log.verify_seconds.append(seconds)
        log.prefill_rows.append(self._prefilled[0])
        log.prefill_seconds.append(self._prefilled[1])
        self._prefilled = 0, 0.0
        self._finished |= {slot.ticket: slot.generation() for slot in slots if slot.finished}
        lane.slots = [slot for slot in slots if not slot.finished]

    def _admitted(self, slots: Sequence[Slot]) -> list[int]:
        """How many of each slot's drafted tokens are verified."""
        if self._settings.packing == "all":
            return [slot.drafted for slot in slots]
        costs = [row_cost(self._decoder.model.config, slot.cache.length) for slot in slots]
        nodes = [
            Node(owner=owner, index=index, survival=survival, cost=costs[owner])
            for owner, slot in enumerate(slots)
            for index, survival in enumerate(slot.acceptance.survival(slot.drafted))
        ]
        admitted = pack(nodes, budget=self._settings.node_budget, row_share=self._settings.packing_cost, fixed=costs)
        counts = Counter(node.owner for node in admitted)
        return [counts[owner] for owner in range(len(slots))]
