"""A worker process: loads the target once and answers requests on standard input, one JSON line each.

    python -m engine.worker --role candidate|stock --model FOLDER --max-context N --threads N

A candidate worker only generates. A stock worker is the untouched reference path: AR, stock speculation, forcing.
"""

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TextIO

import torch
from pydantic import BaseModel

from engine.base import GREEDY, Generation, Request, Sampling, Settings
from engine.batch.decoder import BatchDecoder
from engine.drafters.checkpoint import load_drafter_checkpoint
from engine.loop import Decoder
from engine.protocol import (
    AnyRequest,
    Asked,
    Failed,
    Force,
    Forced,
    Generate,
    GenerateBatch,
    Generated,
    GeneratedBatch,
    MeasureNoise,
    Noise,
    Passes,
    Ready,
    Sampled,
)
from engine.stock import Stock
from engine.weights.checkpoint import load_checkpoint
from space.errors import EngineError


class Worker:
    """Answers requests with one decoder."""

    def __init__(self, decoder: Decoder, stock: Stock | None) -> None:
        """`stock` is None for a candidate worker, which cannot judge tokens."""
        self._decoder = decoder
        self._stock = stock

    def answer(self, line: str) -> BaseModel:
        """Answers one request line; a failure of the request becomes a Failed reply."""
        try:
            return self._dispatch(AnyRequest.model_validate_json(f'{{"body":{line}}}').body)
        except MemoryError as error:
            return Failed(outcome="oom", reason=f"out of memory: {error}")
        except (EngineError, ValueError, RuntimeError, TypeError, LookupError) as error:
            exhausted = isinstance(error, RuntimeError) and "memory" in str(error).lower()
            return Failed(outcome="oom" if exhausted else "runtime", reason=f"{type(error).__name__}: {error}"[:500])

    def _dispatch(self, request: Generate | GenerateBatch | Force | MeasureNoise) -> BaseModel:
        if isinstance(request, Generate):
            return self._generate(request)
        if isinstance(request, GenerateBatch):
            return self._generate_batch(request)
        if self._stock is None:
            raise EngineError(f"a candidate worker does not answer {request.kind!r}: it must not judge itself")
        sampling = _sampling(request.sampling)
        if isinstance(request, Force):
            trace = self._stock.force(request.prompt, request.tokens, sampling)
            return Forced(choices=trace.choices, margins=trace.margins)
        noise = self._stock.self_noise(
            request.prompt, request.tokens, request.row_counts, request.linear_path, sampling
        )
        return Noise(shifts=noise.shifts, flips=noise.flips, compared=noise.compared)

    def _generate(self, request: Generate) -> Generated:
        generation = self._decoder.generate(
            _request(request),
            Settings.from_knobs(request.knobs),
        )
        return _generated(generation)

    def _generate_batch(self, request: GenerateBatch) -> GeneratedBatch:
        decoder = self._decoder
        batch = BatchDecoder(decoder.model, decoder.max_context, request.concurrency, decoder.checkpoint)
        found = batch.generate([_request(asked) for asked in request.requests], Settings.from_knobs(request.knobs))
        passes = Passes(**{field.name: getattr(found.log, field.name) for field in dataclasses.fields(found.log)})
        return GeneratedBatch(answers=tuple(map(_generated, found.generations)), passes=passes)


def _request(asked: Generate | Asked) -> Request:
    return Request(
        prompt=asked.prompt,
        max_tokens=asked.max_tokens,
        stop_ids=asked.stop_ids,
        sampling=_sampling(asked.sampling),
    )


def _sampling(sampled: Sampled | None) -> Sampling:
    return GREEDY if sampled is None else Sampling(**sampled.model_dump())


def _generated(generation: Generation) -> Generated:
    return Generated(
        tokens=generation.tokens,
        finish="stop" if generation.finish == "stop" else "length",
        drafted=tuple(generation.log.drafted),
        accepted=tuple(generation.log.accepted),
        draft_seconds=tuple(generation.log.draft_seconds),
        verify_seconds=tuple(generation.log.verify_seconds),
    )


def serve(worker: Worker, requests: TextIO, replies: TextIO, ready: Ready) -> None:
    """Answers until the requests end."""
    _say(replies, ready)
    for line in requests:
        _say(replies, worker.answer(line))


def _say(replies: TextIO, message: BaseModel) -> None:
    replies.write(message.model_dump_json() + "\n")
    replies.flush()


def main(arguments: list[str] | None = None) -> int:
    """Runs a worker on this process's standard input and output."""
    parser = argparse.ArgumentParser(prog="engine.worker")
    parser.add_argument("--role", choices=["candidate", "stock"], required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, help="a drafter checkpoint folder")
    parser.add_argument("--max-context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args(arguments)
    # Only replies may appear on standard output: whatever else prints goes to standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
    torch.set_num_threads(options.threads)
    try:
        model = load_checkpoint(options.model)
        drafter = load_drafter_checkpoint(options.drafter, model) if options.drafter else None
        decoder = Decoder(model, options.max_context, drafter)
    except EngineError as error:
        _say(replies, Failed(outcome="runtime", reason=str(error)))
        return 1
    stock = Stock(decoder, options.threads) if options.role == "stock" else None
    ready = Ready(torch=torch.__version__, stop_ids=decoder.model.config.stop_ids)
    serve(Worker(decoder, stock), requests, replies, ready)
    return 0


if __name__ == "__main__":
    sys.exit(main())
