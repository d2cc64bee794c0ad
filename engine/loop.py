"""The step loop: draft, verify, commit. AR is the same loop without a drafter."""

import time

import torch
from torch import Tensor

from engine.base import Generation, Request, Sampling, Settings, StepLog
from engine.cache import KVCache
from engine.drafters import make_drafter
from engine.drafters.checkpoint import DraftModel
from engine.models.llama import Llama
from engine.prefill import prefill
from engine.verify.chain import greedy_chain
from engine.verify.sampling import choose
from space.errors import EngineError


class Decoder:
    """Decodes one request at a time on one model; its cache is allocated once."""

    def __init__(self, model: Llama, max_context: int, checkpoint: DraftModel | None = None) -> None:
        """Takes a loaded model, the longest sequence (prompt and output) in tokens, and a drafter checkpoint or None.

        Raises:
            EngineError: the model has fewer positions.
        """
        if max_context > model.config.max_position:
            raise EngineError(f"max_context {max_context}: this model has {model.config.max_position} positions")
        self.model = model
        self.checkpoint = checkpoint
        self.max_context = max_context
        self.cache = KVCache(model.config, max_context)

    @torch.inference_mode()
    def generate(self, request: Request, settings: Settings) -> Generation:
        """Decodes until a stop token or the request's limit; greedily, or by draws that do not depend on the settings.

        Raises:
            EngineError: the prompt is empty, max_tokens is below one, or both do not fit max_context.
        """
        self._prepare(request, settings)
        drafter = make_drafter(settings, self.checkpoint)
        taps = drafter.taps if drafter is not None else ()
        logits, tapped = self._prefill(request.prompt, settings.prefill_chunk, taps)
        tokens = choose(logits, request.sampling, [self.cache.length])
        if drafter is not None:
            drafter.extend((*request.prompt, *tokens), tapped)
        log = StepLog()
        while tokens[-1] not in request.stop_ids and len(tokens) < request.max_tokens:
            started = time.perf_counter()
            room = min(settings.draft_length, request.max_tokens - len(tokens) - 1)
            draft = drafter.propose(room) if drafter is not None and room > 0 else []
            drafted = time.perf_counter()
            commit, tapped = self._verify(tokens[-1], draft, taps, request.sampling)
            commit = self._until_stop(commit, request.stop_ids)
            tokens += commit
            verified = time.perf_counter()
            if drafter is not None:
                drafter.extend(commit, tapped)
            log.drafted.append(len(draft))
            log.accepted.append(len(commit) - 1)
            log.draft_seconds.append(drafted - started + time.perf_counter() - verified)
            log.verify_seconds.append(verified - drafted)
        finish = "stop" if tokens[-1] in request.stop_ids else "length"
        return Generation(tokens=tuple(tokens), finish=finish, log=log)

    def prefill(self, prompt: tuple[int, ...], chunk: int) -> Tensor:
        """Runs the prompt through the model in chunks; returns [1, vocab] logits of the first new token."""
        return self._prefill(prompt, chunk, ())[0]

    def rows(self, tokens: tuple[int, ...]) -> Tensor:
        """One forward pass over a chain of tokens behind the committed ones: [rows, hidden]. Commits nothing."""
        return self._rows(tokens, ())[0]

    def _prefill(self, prompt: tuple[int, ...], chunk: int, taps: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        """Logits of the first new token, and the tapped outputs of all prompt positions."""
        self.cache.reset()
        return prefill(self.model, self.cache, prompt, chunk, taps)

    def _verify(
        self, last: int, draft: list[int], taps: tuple[int, ...], sampling: Sampling
    ) -> tuple[list[int], Tensor | None]:
        """One target pass over the last committed token and a drafted chain.

        Returns the tokens to commit, and the tapped outputs of the positions that were committed by it.
        """
        hidden, tapped = self._rows((last, *draft), taps)
        first = self.cache.length + 1
        choices = choose(self.model.logits(hidden), sampling, range(first, first + len(draft) + 1))
        commit = greedy_chain(draft, choices)
        self.cache.commit(list(range(len(commit))))
        return commit, tapped[: len(commit)] if tapped is not None else None

    def _rows(self, tokens: tuple[int, ...], taps: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        start = self.cache.length
        positions = torch.arange(start, start + len(tokens))
        return self.model.forward_tapped(torch.tensor(tokens), positions, self.cache, taps=taps)

    def _prepare(self, request: Request, settings: Settings) -> None:
        request.check(self.max_context)
        torch.set_num_threads(settings.threads)
        self.model.use(settings.linear_path)

    @staticmethod
    def _until_stop(tokens: list[int], stop_ids: tuple[int, ...]) -> list[int]:
        for index, token in enumerate(tokens):
            if token in stop_ids:
                return tokens[: index + 1]
        return tokens
