"""A parallel drafter for tests: reads text only, and scores candidates by a hash of the text, or around an answer."""

import random
import zlib

import numpy
import torch

from engine.base import Lattice


class ScoredDrafter:
    """At each position the vocabulary's likely tokens, with log-probabilities that depend on the text and on pairs.

    With an `answer` (the whole text, prompt included), the true token is mostly among the candidates, at any rank.
    Scores are multiples of 1/8, so that many are equal: ties must be broken alike wherever trees are built.
    """

    def __init__(self, *, vocab, block=5, pairs=True, answer=(), hit=0.8, seed=0):
        self.vocab, self.block, self.pairs, self.answer, self.hit, self.seed = vocab, block, pairs, answer, hit, seed
        self.text = []

    taps = ()

    def extend(self, tokens, taps=None):
        self.text += tokens

    def lattice(self, limit, width, path=()):
        count, k = min(limit, self.block), min(width, self.vocab)
        text = [*self.text, *path]
        key = zlib.crc32(f"{self.seed} {k} {text}".encode())
        rng, numbers = random.Random(key), numpy.random.default_rng(key)
        ids = [rng.sample(range(self.vocab), k) for _ in range(self.block)]
        for place, drawn in enumerate(ids, len(text)):
            if place < len(self.answer) and rng.random() < self.hit and self.answer[place] not in drawn:
                drawn[min(k - 1, int(rng.expovariate(0.7)))] = self.answer[place]
        scores = numbers.integers(-49, 0, (self.block, k if self.pairs else 1, k)) / 8
        scores[numbers.random(scores.shape[:2]) < 0.5] = -numpy.sort(-scores, -1)[0, 0]
        edges = torch.from_numpy(scores).float()
        return Lattice(ids=torch.tensor(ids)[:count], edges=edges[:count])

    def propose(self, limit):
        lattice, token, draft = self.lattice(limit, 16), 0, []
        for ids, edges in zip(lattice.ids, lattice.edges, strict=True):
            token = int(edges[token if self.pairs else 0].argmax())
            draft.append(int(ids[token]))
        return draft


class ScoredModel:
    """Stands in for a drafter checkpoint: starts a fresh ScoredDrafter a request."""

    kind = "dflash"

    def __init__(self, **options):
        self.options = options

    def start(self, settings):
        return ScoredDrafter(**self.options)
