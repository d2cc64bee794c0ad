"""Timed requests: who answers (AR and stock in the stock worker, the candidate in its own), and the sample it gives."""

from collections.abc import Mapping
from dataclasses import dataclass

from archive.base import Sample
from autotune.client import RequestFailed, WorkerClient
from autotune.prepared import PreparedPrompt
from autotune.sandbox.workers import PatchedWorkers
from engine.protocol import Generate, Generated
from space.errors import WorkerError
from space.genome import Genome
from space.knobs import KnobValue

_WARM_UP_TOKENS = 8
_SLOWEST = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A sample and the answer that it timed."""

    sample: Sample
    answer: Generated


class TimedRequests:
    """Sends requests one at a time and times them from outside the engine."""

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
        return Generate(knobs=dict(knobs), prompt=prompt.tokens, max_tokens=max_tokens, stop_ids=self._stop_ids)

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
