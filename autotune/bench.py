"""Timed requests: who answers (AR and stock in the stock worker, the candidate in its own), and the sample it gives."""

from collections.abc import Mapping
from dataclasses import dataclass

from archive.base import Sample
from autotune.client import RequestFailed, WorkerClient
from autotune.prepared import PreparedPrompt, Unit
from autotune.sandbox.workers import PatchedWorkers
from engine.protocol import Asked, Generate, GenerateBatch, Generated
from space.errors import WorkerError
from space.genome import Genome
from space.knobs import KnobValue
from space.outcome import Outcome

_WARM_UP_TOKENS = 8
_SLOWEST = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A sample and the answer that it timed."""

    sample: Sample
    answer: Generated


class TimedRequests:
    """Sends requests, one at a time or a unit of them at once, and times them from outside the engine."""

    def __init__(
        self,
        *,
        stock: WorkerClient,
        candidate: WorkerClient,
        patched: PatchedWorkers,
        ar: Genome,
        stock_genome: Genome,
        max_tokens: int,
    ) -> None:
        """AR and stock run in the stock worker, which no candidate can reach.

        `candidate` runs genomes without patches, `patched` has a confined worker for each of the others.
        """
        self._stock = stock
        self._candidate = candidate
        self._patched = patched
        self._fixed = {"ar": ar.knobs, "stock": stock_genome.knobs}
        self._stop_ids = stock.start().stop_ids
        self.max_tokens = max_tokens

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end an answer."""
        return self._stop_ids

    def reference(self, role: str, prompt: PreparedPrompt, repeat: int = 0) -> Timed:
        """Times `ar` or `stock`. WorkerError when the reference path itself fails: nothing can be judged then."""
        try:
            return self._time(self._stock, role, self._fixed[role], prompt, repeat, _SLOWEST)
        except RequestFailed as error:
            raise WorkerError(f"the reference path failed on prompt {prompt.id} ({role}): {error}") from error

    def candidate(self, genome: Genome, prompt: PreparedPrompt, repeat: int, timeout: float) -> Timed:
        """Times a candidate; RequestFailed says how it failed."""
        return self._time(self._worker(genome), "candidate", genome.knobs, prompt, repeat, timeout)

    def references(self, role: str, unit: Unit, repeat: int = 0) -> list[Timed]:
        """Times `ar` or `stock` on the prompts of a unit at once, one sample a prompt. WorkerError as `reference`."""
        if len(unit) == 1:
            return [self.reference(role, unit[0], repeat)]
        try:
            return self._time_unit(self._stock, role, self._fixed[role], unit, repeat, _SLOWEST)
        except RequestFailed as error:
            raise WorkerError(f"the reference path failed on prompts {_ids(unit)} ({role}): {error}") from error

    def candidates(self, genome: Genome, unit: Unit, repeat: int, timeout: float) -> list[Timed]:
        """Times a candidate on the prompts of a unit at once; RequestFailed says how it failed."""
        if len(unit) == 1:
            return [self.candidate(genome, unit[0], repeat, timeout)]
        return self._time_unit(self._worker(genome), "candidate", genome.knobs, unit, repeat, timeout)

    def warm_up(self, genome: Genome, prompt: PreparedPrompt, timeout: float) -> None:
        """A short untimed answer: packing weights and first calls must not be timed."""
        self._worker(genome).generate(self._request(genome.knobs, prompt, _WARM_UP_TOKENS), timeout)

    def sandbox(self, genome: Genome) -> str:
        """The level at which a candidate is confined, as it is stored. SandboxError where it cannot be."""
        return self._patched.level(genome)

    def warm_up_reference(self, prompt: PreparedPrompt) -> None:
        """The same for the stock worker."""
        for knobs in self._fixed.values():
            self._stock.generate(self._request(knobs, prompt, _WARM_UP_TOKENS), _SLOWEST)

    def release(self) -> None:
        """Ends the worker of a patched candidate: it may not hold memory, or run, while others are timed."""
        self._patched.close()

    def _worker(self, genome: Genome) -> WorkerClient:
        return self._patched.worker(genome) if genome.patches else self._candidate

    def _request(self, knobs: Mapping[str, KnobValue], prompt: PreparedPrompt, max_tokens: int) -> Generate:
        return Generate(
            knobs=dict(knobs),
            prompt=prompt.tokens,
            max_tokens=max_tokens,
            stop_ids=self._stop_ids,
            sampling=prompt.sampling,
        )

    def _time(
        self,
        worker: WorkerClient,
        role: str,
        knobs: Mapping[str, KnobValue],
        prompt: PreparedPrompt,
        repeat: int,
        timeout: float,
    ) -> Timed:
        answer, seconds = worker.generate(self._request(knobs, prompt, self.max_tokens), timeout)
        return _timed(role, prompt, repeat, answer, seconds)

    def _time_unit(
        self,
        worker: WorkerClient,
        role: str,
        knobs: Mapping[str, KnobValue],
        unit: Unit,
        repeat: int,
        timeout: float,
    ) -> list[Timed]:
        """One sample a prompt, whose seconds are its part of the unit's wall time, by tokens.

        By tokens, because a worker cannot choose them: the parts of two repeats are the same, so that medians over
        repeats add up to wall time, whatever the worker says about its own times.
        """
        asked = tuple(
            Asked(
                prompt=prompt.tokens,
                max_tokens=self.max_tokens,
                stop_ids=self._stop_ids,
                sampling=prompt.sampling,
            )
            for prompt in unit
        )
        request = GenerateBatch(knobs=dict(knobs), requests=asked, concurrency=len(unit))
        reply, seconds = worker.generate_batch(request, timeout)
        if len(reply.answers) != len(unit):
            raise RequestFailed(Outcome.RUNTIME, f"{len(reply.answers)} answers came back for {len(unit)} requests")
        tokens = max(1, sum(len(answer.tokens) for answer in reply.answers))
        return [
            _timed(role, prompt, repeat, answer, seconds * len(answer.tokens) / tokens)
            for prompt, answer in zip(unit, reply.answers, strict=True)
        ]


def _timed(role: str, prompt: PreparedPrompt, repeat: int, answer: Generated, seconds: float) -> Timed:
    sample = Sample(
        prompt_id=prompt.id,
        role=role,
        repeat=repeat,
        tokens=len(answer.tokens),
        seconds=seconds,
        steps=len(answer.drafted),
        drafted=sum(answer.drafted),
        accepted=sum(answer.accepted),
        draft_seconds=sum(answer.draft_seconds),
        verify_seconds=sum(answer.verify_seconds),
    )
    return Timed(sample=sample, answer=answer)


def _ids(unit: Unit) -> str:
    return ", ".join(prompt.id for prompt in unit)
