"""tau of a drafter on prompts, exactly, without decoding step by step.

With greedy decoding the text is fixed and a parallel drafter sees only the true prefix, so drafts at every position of
the finished text tell what any run of steps would have accepted.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from engine.drafters.dflash import DFlash
from engine.drafters.train.corpus import Corpus, Tapped
from engine.drafters.train.generate import Decoding, SlotGenerator
from engine.drafters.train.objective import TOPS, judge
from engine.drafters.train.target import Target
from engine.drafters.train.target_files import Chat
from space.errors import InputError
from space.prompts import Prompt

_TEXTS = 10  # at once: their logits at every anchor are the largest tensor of an evaluation
_NGRAMS, _NGRAM_DRAFTS = (3, 2, 1), 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScore:
    """One prompt set: tokens per target step, bonus included, over all prompts together.

    `tau` drafts over the whole vocabulary, `tau_candidates` over the 64 best tokens by E h, `ngram` copies what
    followed the last 3, else 2, else 1 tokens before. coverage[i][k]: share of true tokens at position k + 1 among
    the best TOPS[i], given the true previous token.
    """

    prompts: int
    tokens: int
    tau: float
    tau_candidates: float
    ngram: float
    coverage: tuple[tuple[float, ...], ...]

    def to_json(self) -> dict[str, object]:
        """Plain data for a record."""
        return asdict(self)


def count_steps(accepted: Sequence[int], tokens: int) -> int:
    """Target steps after the prompt's pass for an answer of `tokens`; accepted[i]: drafts that hold after token i."""
    at = steps = 0
    while at < tokens - 1:
        at += accepted[at] + 1
        steps += 1
    return steps


def ngram_accepted(text: Sequence[int], first: int) -> list[int]:
    """For each answer token (from index `first`), how many copied drafts hold: the baseline every drafter must beat."""
    last: dict[tuple[int, ...], int] = {}
    accepted = []
    for at in range(len(text)):
        keys = [tuple(text[at - n + 1 : at + 1]) for n in _NGRAMS if n <= at + 1]
        if at >= first:
            found, count = next((last[key] for key in keys if key in last), at), 0
            limit = min(_NGRAM_DRAFTS, at - found, len(text) - 1 - at)  # only committed text is copied
            while count < limit and text[found + count + 1] == text[at + count + 1]:
                count += 1
            accepted.append(count)
        last |= dict.fromkeys(keys, at)
    return accepted


def evaluate(
    model: DFlash, target: Target, chat: Chat, sets: dict[str, tuple[Prompt, ...]], *, per_set: int, max_new: int = 128
) -> dict[str, SetScore]:
    """Answers the first `per_set` prompts of each set greedily and scores the drafter on the answers."""
    chosen: dict[str, list[list[int]]] = {}
    for name, prompts in sets.items():
        if len(prompts) < per_set:
            raise InputError(f"evaluation set {name} has {len(prompts)} prompts; --evaluate-prompts is {per_set}")
        chosen[name] = [chat.prompt(p.messages[0]["content"]) for p in prompts[:per_set]]
    asked = [p for prompts in chosen.values() for p in prompts]
    answers = SlotGenerator(target, asked, Decoding(max_new=max_new, stop=chat.stop), len(asked)).run()
    return {
        name: score(model, target, chosen[name], answers[i * per_set : (i + 1) * per_set])
        for i, name in enumerate(chosen)
    }


def score(
    model: DFlash, target: Target, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> SetScore:
    """Scores a drafter on finished greedy answers."""
    corpus = Corpus.from_texts(prompts, answers, target.device)
    tapped = Tapped(corpus, target, model.config.target_layer_ids, texts=_TEXTS)
    starts, lengths, firsts = corpus.starts.tolist(), corpus.lengths.tolist(), corpus.firsts.tolist()
    steps, few, ngram = 0, 0, 0
    hits = torch.zeros(len(TOPS), model.config.draft_length, device=target.device)
    labels = torch.zeros(model.config.draft_length, device=target.device)
    for rows in torch.split(torch.arange(len(corpus), device=target.device), _TEXTS):
        spans = corpus.lengths[rows] - corpus.firsts[rows]
        # Every token of the answer but the last is an anchor once; short answers pad with anchors past their end.
        anchors = corpus.firsts[rows, None] + torch.arange(int(spans.max()) - 1, device=target.device)
        batch = tapped.batch(rows, anchors, model.config.block_size, corpus.width)
        judged = judge(model, target.embedding, target.head, batch)
        hits += judged.hits
        labels += judged.labels
        for row, full, some in zip(rows.tolist(), judged.accepted.tolist(), judged.accepted_few.tolist(), strict=True):
            count = lengths[row] - firsts[row]
            text = corpus.tokens[starts[row] : starts[row] + lengths[row]].tolist()
            steps += count_steps(full, count)
            few += count_steps(some, count)
            ngram += count_steps(ngram_accepted(text, firsts[row]), count)
    made = corpus.answer_tokens - len(corpus)
    return SetScore(
        prompts=len(corpus),
        tokens=corpus.answer_tokens,
        tau=made / steps,
        tau_candidates=made / few,
        ngram=made / ngram,
        coverage=tuple(tuple(row) for row in (hits / labels.clamp(min=1)).tolist()),
    )
