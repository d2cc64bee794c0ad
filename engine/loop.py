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
from engine.verify.builders import MAX_NODES
from engine.verify.chain import greedy_chain
from engine.verify.sampling import choose
from engine.verify.speculation import Speculates, Speculation
from engine.verify.tree import Tree, greedy_walk
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
        # Beyond the sequence itself, a tree's rejected nodes need room for as long as they are verified.
        self.cache = KVCache(model.config, max_context + MAX_NODES)

    def generate(self, request: Request, settings: Settings) -> Generation:
        """Decodes until a stop token or the request's limit; greedily, or by draws that do not depend on the settings.

        Raises:
            EngineError: the prompt is empty, max_tokens is below one, or both do not fit max_context.
        """
        return self.decode(request, settings, Speculation(settings, make_drafter(settings, self.checkpoint)))

    @torch.inference_mode()
    def decode(self, request: Request, settings: Settings, speculation: Speculates) -> Generation:
        """Decodes as `generate` does, with drafts from `speculation`, which is fresh."""
        self._prepare(request, settings)
        taps = speculation.taps
        logits, tapped = self._prefill(request.prompt, settings.prefill_chunk, taps)
        tokens = choose(logits, request.sampling, [self.cache.length])
        speculation.extend((*request.prompt, *tokens), tapped)
        log = StepLog()
        while tokens[-1] not in request.stop_ids and len(tokens) < request.max_tokens:
            started = time.perf_counter()
            draft = speculation.propose(min(settings.draft_length, request.max_tokens - len(tokens) - 1))
            drafted = time.perf_counter()
            commit, tapped = self._verify(tokens[-1], draft, taps, request.sampling)
            commit = self._until_stop(commit, request.stop_ids)
            tokens += commit
            verified = time.perf_counter()
            speculation.extend(commit, tapped)
            log.drafted.append(len(draft))
            log.accepted.append(len(commit) - 1)
            log.draft_seconds.append(drafted - started + time.perf_counter() - verified)
            log.verify_seconds.append(verified - drafted)
        finish = "stop" if tokens[-1] in request.stop_ids else "length"
        return Generation(tokens=tuple(tokens), finish=finish, log=log)

    def prefill(self, prompt: tuple[int, ...], chunk: int) -> Tensor:
        """Runs the prompt through the model in chunks; returns [1, vocab] logits of the first new token."""
        return self._prefill(prompt, chunk, ())[0]

    def rows(self, tokens: tuple[int, ...], tree: Tree | None = None) -> Tensor:
        """One forward pass over tokens behind the committed ones: [rows, hidden]. Commits nothing.

        The tokens are a chain, or the next one and behind it the nodes of `tree`.
        """
        return self._rows(tokens, (), tree)[0]

    def _prefill(self, prompt: tuple[int, ...], chunk: int, taps: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        """Logits of the first new token, and the tapped outputs of all prompt positions."""
        self.cache.reset()
        return prefill(self.model, self.cache, prompt, chunk, taps)

    def _verify(
        self, last: int, draft: Tree, taps: tuple[int, ...], sampling: Sampling
    ) -> tuple[list[int], Tensor | None]:
        """One target pass over the last committed token and the drafted nodes.

        Returns the tokens to commit, and the tapped outputs of the positions that were committed by it.
        """
        first = self.cache.length + 1  # the position that the first row predicts
        if draft.is_chain:  # needs no mask, and its committed rows no moving
            hidden, tapped = self._rows((last, *draft.tokens), taps)
            choices = choose(self.model.logits(hidden), sampling, range(first, first + len(draft.tokens) + 1))
            commit = greedy_chain(draft.tokens, choices)
            self.cache.commit(list(range(len(commit))))
            return commit, tapped[: len(commit)] if tapped is not None else None
        hidden, tapped = self._rows((last, *draft.tokens), taps, draft)
        choices = choose(self.model.logits(hidden), sampling, draft.positions(first).tolist())
        rows = [0, *(node + 1 for node in greedy_walk(draft, choices))]
        self.cache.commit(rows)
        return [choices[row] for row in rows], tapped[rows] if tapped is not None else None

    def _rows(
        self, tokens: tuple[int, ...], taps: tuple[int, ...], tree: Tree | None = None
    ) -> tuple[Tensor, Tensor | None]:
        start, visible = self.cache.length, None
        if tree is None:
            positions = torch.arange(start, start + len(tokens))
        else:
            positions, visible = tree.positions(start), tree.visible()
        return self.model.forward_tapped(torch.tensor(tokens), positions, self.cache, visible, taps)

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
