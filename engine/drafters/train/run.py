"""One training run from target to checkpoint: text, taps, training, evaluation, record."""

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from engine.drafters.train.corpus import Corpus, Tapped
from engine.drafters.train.curves import draw_curves
from engine.drafters.train.evaluate import SetScore, evaluate
from engine.drafters.train.generate import Decoding, SlotGenerator
from engine.drafters.train.options import TrainOptions
from engine.drafters.train.prompts import read_evaluation, read_seeds, sample_turns
from engine.drafters.train.target import Target
from engine.drafters.train.target_files import Chat, load_target
from engine.drafters.train.trainer import Trainer
from space.errors import InputError
from space.prompts import Prompt

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a run reads and writes. `seeds` None means the built-in first phrases."""

    target: Path
    out: Path
    seeds: Path | None = None
    evaluation: tuple[Path, ...] = ()
    per_set: int = 20


def train_drafter(options: TrainOptions, places: Places, device: torch.device, command: Sequence[str]) -> None:
    """Runs or resumes a training run; `places.out` then holds the checkpoint, log.jsonl, curves.png, training.json."""
    began = time.monotonic()
    sets = read_evaluation(places.evaluation)
    seeds = read_seeds(places.seeds, places.evaluation)
    places.out.mkdir(parents=True, exist_ok=True)
    options.claim(places.out)
    target, chat = load_target(places.target, device)
    _log.info("target loaded", seconds=round(time.monotonic() - began, 1))
    writer = _Writer(options, target, chat, seeds, [p for prompts in sets.values() for p in prompts], places.out)
    text, held = writer.chunk(0).split(options.held)
    drafted = text.frequent(options.draft_vocabulary, target.config.vocab_size)
    trainer = Trainer(options, target, Tapped(held, target, options.taps), writer.width, drafted, places.out)
    for chunk in range(options.chunks):
        end = (chunk + 1) / options.chunks
        if trainer.progress < end:
            trainer.train(_tapped(writer.chunk(chunk) if chunk else text, target, options), end)
    draw_curves(places.out)
    model = trainer.model.to(torch.bfloat16).eval()  # what the checkpoint holds, not the float32 it was trained in
    scores = evaluate(model, target, chat, sets, per_set=places.per_set) if sets else {}
    record = _record(options, command, [writer.chunk(i) for i in range(options.chunks)], trainer, scores)
    record["minutes_total"] = round((time.monotonic() - began) / 60, 2)
    (places.out / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    _log.info("done", **{name: round(s.tau, 3) for name, s in scores.items()})


def _tapped(corpus: Corpus, target: Target, options: TrainOptions) -> Tapped:
    began = time.monotonic()
    tapped = Tapped(corpus, target, options.taps)
    _log.info("taps computed", seconds=round(time.monotonic() - began, 1), tokens=len(corpus.tokens))
    return tapped


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes each chunk of text once and keeps it in the run's folder."""

    options: TrainOptions
    target: Target
    chat: Chat
    seeds: Sequence[str]
    evaluation: Sequence[Prompt]
    folder: Path

    @property
    def width(self) -> int:
        """Length that no text exceeds, a multiple of 8."""
        chat, options = self.chat, self.options
        start = max(len(chat.encode(chat.before + seed)) for seed in self.seeds)
        longest = start + options.turn_tokens + len(chat.encode(chat.after)) + options.answer_tokens
        return math.ceil(longest / 8) * 8

    def chunk(self, number: int) -> Corpus:
        """Chunk `number`'s text, from the folder if it is there; the seed and the number decide it."""
        path = self.folder / f"corpus-{number}.safetensors"
        if not path.exists():
            self._write(number).save(path)
        return Corpus.load(path, self.target.device)

    def _write(self, number: int) -> Corpus:
        options, target, chat = self.options, self.target, self.chat
        began = time.monotonic()
        own = options.seed * 1000 + number
        torch.manual_seed(own)
        prompts = sample_turns(
            target,
            chat,
            seeds=self.seeds,
            count=options.prompts,
            max_tokens=options.turn_tokens,
            slots=options.slots,
            generator=random.Random(own),
            evaluation=self.evaluation,
        )
        if len(prompts) < 2 * options.held:
            raise InputError(
                f"only {len(prompts)} usable prompts came of --prompts {options.prompts}; "
                f"--held {options.held} needs twice as many: raise --prompts or lower --held"
            )
        sampled = time.monotonic()
        greedy = Decoding(max_new=options.answer_tokens, stop=chat.stop)
        answers = SlotGenerator(target, prompts, greedy, options.slots).run()
        corpus = Corpus.from_texts(prompts, answers, target.device)
        _log.info(
            "text written",
            chunk=number,
            texts=len(corpus),
            answer_tokens=corpus.answer_tokens,
            turn_seconds=round(sampled - began, 1),
            answer_seconds=round(time.monotonic() - sampled, 1),
            sample=chat.tokenizer.decode([*prompts[0], *answers[0][:40]]),
        )
        return corpus


def _record(
    options: TrainOptions, command: Sequence[str], text: Sequence[Corpus], trainer: Trainer, scores: dict[str, SetScore]
) -> dict[str, object]:
    device = trainer.model.mask_embedding.device
    return {
        "command": " ".join(command),
        "options": options.to_json(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "texts": sum(len(corpus) for corpus in text),
        "text_tokens": sum(len(corpus.tokens) for corpus in text),
        "answer_tokens": sum(corpus.answer_tokens for corpus in text),
        "steps": trainer.step,
        "minutes_trained": round(trainer.elapsed / 60, 2),
        "evaluation": {name: score.to_json() for name, score in scores.items()},
    }
