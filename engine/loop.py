"""The step loop: draft, verify, commit. AR is the same loop without a drafter."""

import time

import torch
from torch import Tensor

from engine.base import Generation, Request, Settings, StepLog
from engine.cache import KVCache
from engine.drafters import make_drafter
from engine.models.llama import Llama
from engine.verify.chain import greedy_chain
from space.errors import EngineError


class Decoder:
    """Decodes one request at a time on one model; its cache is allocated once."""

    def __init__(self, model: Llama, max_context: int) -> None:
        """Takes a loaded model and the longest sequence, prompt and output together, in tokens.

        Raises:
            EngineError: the model has fewer positions.
        """
        if max_context > model.config.max_position:
            raise EngineError(f"max_context {max_context}: this model has {model.config.max_position} positions")
        self.model = model
        self._max_context = max_context
        self.cache = KVCache(model.config, max_context)

    @torch.inference_mode()
    def generate(self, request: Request, settings: Settings) -> Generation:
        """Decodes greedily until a stop token or the request's limit.

        Raises:
            EngineError: the prompt is empty, max_tokens is below one, or both do not fit max_context.
        """
        self._prepare(request, settings)
        drafter = make_drafter(settings)
        tokens = [int(self.prefill(request.prompt, settings.prefill_chunk).argmax())]
        if drafter is not None:
            drafter.extend(request.prompt)
            drafter.extend(tokens)
        log = StepLog()
        while tokens[-1] not in request.stop_ids and len(tokens) < request.max_tokens:
            started = time.perf_counter()
            room = min(settings.draft_length, request.max_tokens - len(tokens) - 1)
            draft = drafter.propose(room) if drafter is not None and room > 0 else []
            drafted = time.perf_counter()
            commit = self._until_stop(self.verify(tokens[-1], draft), request.stop_ids)
            tokens += commit
            if drafter is not None:
                drafter.extend(commit)
            log.drafted.append(len(draft))
            log.accepted.append(len(commit) - 1)
            log.draft_seconds.append(drafted - started)
            log.verify_seconds.append(time.perf_counter() - drafted)
        finish = "stop" if tokens[-1] in request.stop_ids else "length"
        return Generation(tokens=tuple(tokens), finish=finish, log=log)

    def prefill(self, prompt: tuple[int, ...], chunk: int) -> Tensor:
        """Runs the prompt through the model in chunks; returns [1, vocab] logits of the first new token."""
        self.cache.reset()
        hidden = None
        for start in range(0, len(prompt), chunk):
            hidden = self.rows(prompt[start : start + chunk])
            self.cache.commit(list(range(hidden.shape[0])))
        if hidden is None:
            raise EngineError("the prompt is empty: give at least one token")
        return self.model.logits(hidden[-1:])

    def verify(self, last: int, draft: list[int]) -> list[int]:
        """One target pass over the last committed token and a drafted chain; returns the tokens to commit."""
        hidden = self.rows((last, *draft))
        choices: list[int] = self.model.logits(hidden).argmax(-1).tolist()
        commit = greedy_chain(draft, choices)
        self.cache.commit(list(range(len(commit))))
        return commit

    def rows(self, tokens: tuple[int, ...]) -> Tensor:
        """One forward pass over a chain of tokens behind the committed ones: [rows, hidden]. Commits nothing."""
        start = self.cache.length
        positions = torch.arange(start, start + len(tokens))
        return self.model.forward(torch.tensor(tokens), positions, self.cache)

    def _prepare(self, request: Request, settings: Settings) -> None:
        if request.max_tokens < 1:
            raise EngineError(f"max_tokens {request.max_tokens}: ask for at least one token")
        needed = len(request.prompt) + request.max_tokens
        if needed > self._max_context:
            raise EngineError(
                f"{len(request.prompt)} prompt tokens and {request.max_tokens} new ones need {needed} positions; "
                f"max_context allows {self._max_context}"
            )
        torch.set_num_threads(settings.threads)
        self.model.use(settings.linear_path)

    @staticmethod
    def _until_stop(tokens: list[int], stop_ids: tuple[int, ...]) -> list[int]:
        for index, token in enumerate(tokens):
            if token in stop_ids:
                return tokens[: index + 1]
        return tokens
