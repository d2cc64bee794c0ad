"""The training text: answered prompts end to end in one flat tensor, their taps beside them, and batches of anchors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.drafters.train.target import Target
from space.errors import EngineError

_SCALE_SAMPLE = 65_536


@dataclass(frozen=True, slots=True)
class Batch:
    """Anchors of a few texts. b texts, c context columns, a anchors a text, s = block size, k = s - 1.

    taps [b, c, taps * hidden]; anchors [b, a] token ids; positions [b, a, s]; previous and labels [b, a, k] token ids:
    what stands before and at each drafted position; inside [b, a, k]: 1 where the label exists;
    mask [b, 1, a * s, c + a * s], added to attention scores.
    """

    taps: Tensor
    anchors: Tensor
    positions: Tensor
    previous: Tensor
    labels: Tensor
    inside: Tensor
    mask: Tensor


class Corpus:
    """Texts as flat token ids [total] with start, length and first answer token of each, on one device."""

    def __init__(self, tokens: Tensor, lengths: Tensor, firsts: Tensor) -> None:
        self.tokens, self.lengths, self.firsts = tokens, lengths, firsts
        self.starts = lengths.cumsum(0) - lengths
        self.width = math.ceil(int(lengths.max()) / 8) * 8

    @classmethod
    def from_texts(
        cls, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], device: torch.device
    ) -> "Corpus":
        """Joins prompts and answers; texts whose answer is shorter than two tokens draft nothing and are left out."""
        pairs = [(p, a) for p, a in zip(prompts, answers, strict=True) if len(a) >= 2]
        if not pairs:
            raise EngineError("no prompt got an answer of two tokens; raise --prompts or --answer-tokens")
        flat = [t for p, a in pairs for t in (*p, *a)]
        return cls(
            torch.tensor(flat, device=device),
            torch.tensor([len(p) + len(a) for p, a in pairs], device=device),
            torch.tensor([len(p) for p, _ in pairs], device=device),
        )

    @classmethod
    def load(cls, path: Path, device: torch.device) -> "Corpus":
        """Reads what `save` wrote."""
        data = load_file(path)
        return cls(data["tokens"].long().to(device), data["lengths"].to(device), data["firsts"].to(device))

    def save(self, path: Path) -> None:
        """Writes the texts; taps are recomputed, they are three orders of magnitude larger."""
        parts = {"tokens": self.tokens.int(), "lengths": self.lengths, "firsts": self.firsts}
        save_file({name: t.cpu().contiguous() for name, t in parts.items()}, path)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def answer_tokens(self) -> int:
        """Number of tokens that the target answered with."""
        return int((self.lengths - self.firsts).sum())

    def frequent(self, count: int, vocabulary: int) -> Tensor:
        """The `count` tokens that answers use most, int64 [count], most frequent first; ties to the lower id."""
        within = torch.arange(self.width, device=self.tokens.device)
        used = torch.zeros(vocabulary, dtype=torch.int64, device=self.tokens.device)
        for rows in torch.split(torch.arange(len(self), device=self.tokens.device), 1024):
            answer = (within >= self.firsts[rows, None]) & (within < self.lengths[rows, None])
            place = (self.starts[rows, None] + within)[answer]
            used += torch.bincount(self.tokens[place], minlength=vocabulary)
        return used.argsort(descending=True, stable=True)[:count]

    def split(self, held: int) -> tuple["Corpus", "Corpus"]:
        """All but the last `held` texts, and those."""
        edge = int(self.starts[len(self) - held])
        return (
            Corpus(self.tokens[:edge], self.lengths[:-held], self.firsts[:-held]),
            Corpus(self.tokens[edge:], self.lengths[-held:], self.firsts[-held:]),
        )


class Tapped:
    """A corpus with the target's taps of every token [total, taps * hidden], kept on the device.

    One pass over the text replaces a pass of the target in every training step.
    """

    def __init__(self, corpus: Corpus, target: Target, layers: Sequence[int], texts: int = 256) -> None:
        self.corpus = corpus
        tokens, width = corpus.tokens, len(layers) * target.config.hidden_size
        needed = len(tokens) * width * target.embedding.element_size()
        if target.device.type == "cuda":
            torch.cuda.empty_cache()  # what the generator used counts as taken until then
            free = torch.cuda.mem_get_info(target.device)[0]
            if needed > free * 0.9:
                asked = f"taps of {len(tokens)} tokens need {needed / 2**30:.0f} GiB of {free / 2**30:.0f} GiB free"
                raise EngineError(f"{asked}; lower --prompts")
        self.taps = torch.empty(len(tokens), width, dtype=target.embedding.dtype, device=target.device)
        order = corpus.lengths.argsort()  # texts of like length together: little padding
        for rows in torch.split(order, texts):
            columns = torch.arange(int(corpus.lengths[rows].max()), device=target.device)
            place = corpus.starts[rows, None] + columns
            real = columns < corpus.lengths[rows, None]
            hidden = target.hidden(tokens[place.clamp(max=len(tokens) - 1)], layers)
            self.taps[place[real]] = hidden[real]

    def scale(self, generator: torch.Generator) -> Tensor:
        """Root mean square of each tap channel over a sample of answer positions, float32 [taps * hidden]."""
        chosen = torch.randint(len(self.corpus), (_SCALE_SAMPLE,), generator=generator, device=self.taps.device)
        share = torch.rand(_SCALE_SAMPLE, generator=generator, device=self.taps.device)
        corpus = self.corpus
        span = corpus.lengths[chosen] - corpus.firsts[chosen]
        rows = corpus.starts[chosen] + corpus.firsts[chosen] + (share * span).long()
        total = torch.zeros(self.taps.shape[1], device=self.taps.device)
        for part in torch.split(rows, 8192):
            total += self.taps[part].float().square().sum(0)
        return (total / _SCALE_SAMPLE).sqrt().clamp(min=1e-6)

    def draw(self, texts: int, anchors: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws texts [texts] by their answer's length and anchors [texts, anchors] evenly over each answer."""
        corpus, device = self.corpus, self.taps.device
        span = (corpus.lengths - corpus.firsts - 1).float()
        rows = torch.multinomial(span, texts, replacement=True, generator=generator)
        shift = torch.rand(texts, anchors, generator=generator, device=device)
        share = (torch.arange(anchors, device=device) + shift) / anchors
        offset = (share * span[rows, None]).long().clamp(max=span[rows, None].long() - 1)
        return rows, corpus.firsts[rows, None] + offset

    def batch(self, rows: Tensor, anchors: Tensor, block: int, width: int) -> Batch:
        """Gathers what drafting at `anchors` [b, a] (positions in their texts) of texts `rows` [b] needs."""
        corpus, device, last = self.corpus, self.taps.device, len(self.corpus.tokens) - 1
        start = corpus.starts[rows, None]
        columns = torch.arange(width, device=device)
        steps = torch.arange(block, device=device)
        positions = anchors[..., None] + steps
        ids = corpus.tokens[(start[..., None] + positions).clamp(max=last)]
        inside = positions[..., 1:] < corpus.lengths[rows, None, None]
        count = anchors.shape[1] * block
        seen = (columns < anchors[..., None]).repeat_interleave(block, 1)
        owner = torch.arange(count, device=device) // block
        own = (owner[:, None] == owner).expand(len(rows), -1, -1)
        mask = torch.zeros(len(rows), 1, count, width + count, dtype=self.taps.dtype, device=device)
        mask.masked_fill_(~torch.cat((seen, own), -1)[:, None], -torch.inf)
        return Batch(
            taps=self.taps[(start + columns).clamp(max=last)],
            anchors=ids[..., 0],
            positions=positions,
            previous=ids[..., :-1],
            labels=ids[..., 1:],
            inside=inside.float(),
            mask=mask,
        )
