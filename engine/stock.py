"""Stock's own judgement of tokens: teacher forcing through the reference path, one row at a time.

The reference path is AR decoding: every token after a prefix is judged by the logits that AR would have had there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.base import GREEDY, Sampling
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

    `shifts` are changes of the distance between stock's first and second choice, in logits; of sampled tokens, moves of
    the border of the token's interval, in cumulated probability. `flips` counts positions whose choice changed, out of
    `compared`.
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
    def force(self, prompt: tuple[int, ...], tokens: Sequence[int], sampling: Sampling = GREEDY) -> ForcedTrace:
        """Teacher-forces `tokens` after `prompt`; each is judged by stock's logits at one row.

        Sampled tokens are judged by themselves too, not by their distribution: exact sampling emits the very tokens
        that stock draws after the same prefix with the same random numbers. Their margins are in cumulated
        probability: how far the random number lies from the token's interval.

        Raises:
            EngineError: there is no token, or one that is not in the vocabulary (a negative id would be taken for
                another token).
        """
        vocab = self._decoder.model.config.vocab
        strange = [token for token in tokens if not 0 <= token < vocab]
        if strange or not tokens:
            raise EngineError(f"cannot judge tokens {strange}: give at least one, each from 0 to {vocab - 1}")
        rows = self._one_row_logits(prompt, tokens)
        if sampling.temperature > 0:
            p = distribution(rows, sampling)
            uniform = [stream(sampling.seed, len(prompt) + index).random() for index in range(len(tokens))]
            margins = tuple(map(draw_margin, p, tokens, uniform))
            return ForcedTrace(choices=tuple(map(draw, p, uniform)), margins=margins)
        best = rows.max(-1).values
        distances = (best - rows[torch.arange(len(tokens)), torch.tensor(tokens)]).tolist()
        return ForcedTrace(choices=tuple(rows.argmax(-1).tolist()), margins=tuple(distances))

    @torch.inference_mode()
    def self_noise(
        self,
        prompt: tuple[int, ...],
        tokens: Sequence[int],
        row_counts: Sequence[int],
        linear_path: str = "plain",
        sampling: Sampling = GREEDY,
    ) -> SelfNoise:
        """Compares one-row logits with those of passes of `row_counts` rows, at every position of `tokens`.

        The passes of several rows run in the weight layout `linear_path`, one row in the plain one: whatever the
        layout changes belongs to the noise.
        """
        single = self._one_row_logits(prompt, tokens)
        compare = _greedy_noise if sampling.temperature == 0 else partial(_sampled_noise, prompt, tokens, sampling)
        shifts: list[float] = []
        flips = 0
        for count in row_counts:
            shifted, flipped = compare(single, self._logits(prompt, tokens, count, linear_path))
            shifts += shifted
            flips += flipped
        return SelfNoise(shifts=tuple(shifts), flips=flips, compared=len(tokens) * len(row_counts))

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


def _greedy_noise(single: Tensor, several: Tensor) -> tuple[list[float], int]:
    """Changes of the distance between single's first and second choice, [rows]; and how many first choices changed."""
    first, second = single.topk(2, dim=-1).indices.unbind(-1)
    at = torch.arange(len(single))
    shifts = several[at, first] - several[at, second] - (single[at, first] - single[at, second])
    return shifts.abs().tolist(), int((several.argmax(-1) != single.argmax(-1)).sum())


def _sampled_noise(
    prompt: tuple[int, ...], tokens: Sequence[int], sampling: Sampling, single: Tensor, several: Tensor
) -> tuple[list[float], int]:
    """How far the nearer border of each drawn token's interval moved, [rows]; and how many draws changed."""
    rows = [distribution(logits, sampling) for logits in (single, several)]
    uniform = [stream(sampling.seed, len(prompt) + index).random() for index in range(len(tokens))]
    choices = [list(map(draw, p, uniform)) for p in rows]
    shifts = []
    for one, other, chosen, at in zip(*rows, choices[0], uniform, strict=True):
        ends = [(float(p[:chosen].sum()), float(p[: chosen + 1].sum())) for p in (one, other)]
        nearer = min((0, 1), key=lambda side: abs(ends[0][side] - at))
        shifts.append(abs(ends[0][nearer] - ends[1][nearer]))
    return shifts, sum(a != b for a, b in zip(*choices, strict=True))
