"""One request in a batch: its cache, its drafter, and what it has said so far."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.base import Drafter, Generation, Request, StepLog
from engine.batch.acceptance import Acceptance
from engine.cache import KVCache
from engine.models.llama import Llama, Rows
from engine.prefill import prefill
from engine.verify.chain import greedy_chain
from engine.verify.sampling import choose


class Slot:
    """A request that has joined. It never sees another request, so its tokens cannot depend on one."""

    def __init__(
        self, ticket: int, request: Request, cache: KVCache, drafter: Drafter | None, acceptance: Acceptance
    ) -> None:
        """Takes the request with an empty cache and a fresh drafter of its own, and what estimates its acceptance."""
        self.ticket = ticket
        self.request = request
        self.cache = cache
        self.acceptance = acceptance
        self.tokens: list[int] = []
        self._drafter = drafter
        self._draft: list[int] = []
        self._news: tuple[Sequence[int], Tensor | None] | None = None
        self._log = StepLog()

    @property
    def taps(self) -> tuple[int, ...]:
        """The drafter's."""
        return self._drafter.taps if self._drafter is not None else ()

    @property
    def drafted(self) -> int:
        """How many tokens are drafted for the next pass."""
        return len(self._draft)

    @property
    def finished(self) -> bool:
        """True after a stop token, or when the request has the tokens that it asked for."""
        return self.tokens[-1] in self.request.stop_ids or len(self.tokens) >= self.request.max_tokens

    def start(self, model: Llama, chunk: int) -> None:
        """Prefills the prompt and chooses the first token."""
        logits, tapped = prefill(model, self.cache, self.request.prompt, chunk, self.taps)
        self.tokens = choose(logits, self.request.sampling, [self.cache.length])
        self._news = (*self.request.prompt, *self.tokens), tapped

    def draft(self, longest: int) -> None:
        """Tells the drafter what was committed, and lets it draft at most `longest` tokens."""
        if self._drafter is None:
            return
        if self._news is not None:
            self._drafter.extend(*self._news)
            self._news = None
        room = min(longest, self.request.max_tokens - len(self.tokens) - 1)
        self._draft = self._drafter.propose(room) if room > 0 else []

    def rows(self, nodes: int) -> Rows:
        """The rows of the next target pass: the last committed token and the first `nodes` drafted ones."""
        self._draft = self._draft[:nodes]
        tokens = torch.tensor([self.tokens[-1], *self._draft])
        start = self.cache.length
        return Rows(tokens=tokens, positions=torch.arange(start, start + len(tokens)), cache=self.cache)

    def commit(self, logits: Tensor, tapped: Tensor | None) -> int:
        """Commits what the target says about the rows; returns how many drafted tokens were committed.

        Args:
            logits: [rows, vocab] fp32, of this request's rows.
            tapped: their tapped outputs, or None.
        """
        first = self.cache.length + 1
        choices = choose(logits, self.request.sampling, range(first, first + len(logits)))
        commit = greedy_chain(self._draft, choices)
        self.cache.commit(list(range(len(commit))))
        self.acceptance.observe(len(self._draft), len(commit) - 1)
        said = self._until_stop(commit)
        self.tokens += said
        self._news = said, tapped[: len(said)] if tapped is not None else None
        self._log.drafted.append(len(self._draft))
        self._log.accepted.append(len(said) - 1)
        self._draft = []
        return len(said) - 1

    def record(self, draft_seconds: float, verify_seconds: float) -> None:
        """Notes this request's share of the time that the step spent on drafts and in the pass."""
        self._log.draft_seconds.append(draft_seconds)
        self._log.verify_seconds.append(verify_seconds)

    def generation(self) -> Generation:
        """What the request has said, when it has finished. The log's seconds are shares, which add up over requests."""
        finish = "stop" if self.tokens[-1] in self.request.stop_ids else "length"
        return Generation(tokens=tuple(self.tokens), finish=finish, log=self._log)

    def _until_stop(self, tokens: list[int]) -> list[int]:
        for index, token in enumerate(tokens):
            if token in self.request.stop_ids:
                return tokens[: index + 1]
        return tokens
