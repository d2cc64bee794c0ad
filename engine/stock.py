"""Stock's own judgement of tokens: teacher forcing through the reference path, one row at a time.

The reference path is AR decoding: every token after a prefix is judged by the logits that AR would have had there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.base import Sampling
from engine.loop import Decoder
from engine.verify.sampling import distribution, draw, draw_margin, stream
from space.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedTrace:
    """For each token: what stock would have chosen there, and how far the token lies from it (in logits, if greedy)."""

    choices: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfNoise:
    """How stock differs from itself when the same prefixes run in passes of several rows.

    `shifts` are changes of the distance between stock's first and second choice, in logits; `flips` counts positions
    whose first choice changed, out of `compared`.
    """

    shifts: tuple[float, ...]
    flips: int
    compared: int


class Stock:
    """Judges tokens on a model, with the reference settings only: plain weights, chunked prefill, one row a step."""

    def __init__(self, decoder: Decoder, threads: int) -> None:
        """Takes a decoder of its own and the thread count of the reference path."""
        self._decoder = decoder
        self._threads = threads

    @torch.inference_mode()
    def force(self, prompt: tuple[int, ...], tokens: Sequence[int]) -> ForcedTrace:
        """Teacher-forces `tokens` after `prompt`; each is judged by stock's logits at one row.

        Raises:
            EngineError: there is no token, or one that is not in the vocabulary (a negative id would be taken for
                another token).
        """
        self._check(tokens)
        rows = self._one_row_logits(prompt, tokens)
        best = rows.max(-1).values
        margins = (best - rows[torch.arange(len(tokens)), torch.tensor(tokens)]).tolist()
        return ForcedTrace(choices=tuple(rows.argmax(-1).tolist()), margins=tuple(margins))

    @torch.inference_mode()
    def force_draws(self, prompt: tuple[int, ...], tokens: Sequence[int], sampling: Sampling) -> ForcedTrace:
        """Teacher-forces sampled tokens: what stock draws after the same prefix with the same random numbers.

        Exact sampling by this engine emits the very tokens that stock draws, so a token can be judged by itself. The
        margins are in cumulated probability: how far the random number lies from the token's interval.

        Raises:
            EngineError: as `force`.
        """
        self._check(tokens)
        rows = distribution(self._one_row_logits(prompt, tokens), sampling)
        uniform = [stream(sampling.seed, len(prompt) + index).random() for index in range(len(tokens))]
        return ForcedTrace(
            choices=tuple(map(draw, rows, uniform)), margins=tuple(map(draw_margin, rows, tokens, uniform))
        )

    def _check(self, tokens: Sequence[int]) -> None:
        vocab = self._decoder.model.config.vocab
        strange = [token for token in tokens if not 0 <= token < vocab]
        if strange or not tokens:
            raise EngineError(f"cannot judge tokens {strange}: give at least one, each from 0 to {vocab - 1}")

    @torch.inference_mode()
    def self_noise(
        self, prompt: tuple[int, ...], tokens: Sequence[int], row_counts: Sequence[int], linear_path: str = "plain"
    ) -> SelfNoise:
        """Compares one-row logits with those of passes of `row_counts` rows, at every position of `tokens`.

        The passes of several rows run in the weight layout `linear_path`, one row in the plain one: whatever the
        layout changes belongs to the noise.
        """
        single = self._one_row_logits(prompt, tokens)
        first, second = single.topk(2, dim=-1).indices.unbind(-1)
        at = torch.arange(len(tokens))
        distance = single[at, first] - single[at, second]
        shifts: list[float] = []
        flips = 0
        for count in row_counts:
            several = self._logits(prompt, tokens, count, linear_path)
            shifts += (several[at, first] - several[at, second] - distance).abs().tolist()
            flips += int((several.argmax(-1) != single.argmax(-1)).sum())
        return SelfNoise(shifts=tuple(shifts), flips=flips, compared=len(shifts))

    def _one_row_logits(self, prompt: tuple[int, ...], tokens: Sequence[int]) -> Tensor:
        return self._logits(prompt, tokens, 1, "plain")

    def _logits(self, prompt: tuple[int, ...], tokens: Sequence[int], count: int, linear_path: str) -> Tensor:
        """[len(tokens), vocab] fp32: the logits that predict each token, from passes of `count` rows."""
        decoder = self._decoder
        torch.set_num_threads(self._threads)
        decoder.model.use(linear_path)
        parts = [decoder.prefill(prompt, chunk=256)]
        for start in range(0, len(tokens) - 1, count):
            hidden = decoder.rows(tuple(tokens[start : min(start + count, len(tokens) - 1)]))
            decoder.cache.commit(list(range(hidden.shape[0])))
            parts.append(decoder.model.logits(hidden))
        return torch.cat(parts)
