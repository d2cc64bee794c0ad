"""One training run from target to checkpoint: text, taps, training, evaluation, record."""

import json
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
    corpus = _corpus(options, places, target, chat, seeds, [p for prompts in sets.values() for p in prompts])
    written = time.monotonic()
    train, held = corpus.split(min(options.held, len(corpus) // 10 + 1))
    tapped = [Tapped(part, target, options.taps) for part in (train, held)]
    _log.info("taps computed", seconds=round(time.monotonic() - written, 1), tokens=len(corpus.tokens))
    trainer = Trainer(options, target, tapped[0], tapped[1], corpus.width, places.out)
    trainer.train()
    draw_curves(places.out)
    model = trainer.model.to(torch.bfloat16).eval()  # what the checkpoint holds, not the float32 it was trained in
    scores = evaluate(model, target, chat, sets, per_set=places.per_set) if sets else {}
    record = _record(options, command, corpus, trainer, scores)
    record["minutes_total"] = round((time.monotonic() - began) / 60, 2)
    (places.out / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    _log.info("done", **{name: round(s.tau, 3) for name, s in scores.items()})


def _corpus(
    options: TrainOptions,
    places: Places,
    target: Target,
    chat: Chat,
    seeds: Sequence[str],
    evaluation: Sequence[Prompt],
) -> Corpus:
    path = places.out / "corpus.safetensors"
    if path.exists():
        return Corpus.load(path, target.device)
    began = time.monotonic()
    torch.manual_seed(options.seed)
    prompts = sample_turns(
        target,
        chat,
        seeds=seeds,
        count=options.prompts,
        max_tokens=options.turn_tokens,
        slots=options.slots,
        generator=random.Random(options.seed),
        evaluation=evaluation,
    )
    if len(prompts) < 2:
        raise InputError(f"only {len(prompts)} usable prompts came of --prompts {options.prompts}; raise it")
    sampled = time.monotonic()
    greedy = Decoding(max_new=options.answer_tokens, stop=chat.stop)
    answers = SlotGenerator(target, prompts, greedy, options.slots).run()
    corpus = Corpus.from_texts(prompts, answers, target.device)
    corpus.save(path)
    _log.info(
        "text written",
        texts=len(corpus),
        answer_tokens=corpus.answer_tokens,
        turn_seconds=round(sampled - began, 1),
        answer_seconds=round(time.monotonic() - sampled, 1),
        sample=chat.tokenizer.decode([*prompts[0], *answers[0][:40]]),
    )
    return corpus


def _record(
    options: TrainOptions, command: Sequence[str], corpus: Corpus, trainer: Trainer, scores: dict[str, SetScore]
) -> dict[str, object]:
    device = trainer.model.mask_embedding.device
    return {
        "command": " ".join(command),
        "options": options.to_json(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "texts": len(corpus),
        "text_tokens": len(corpus.tokens),
        "answer_tokens": corpus.answer_tokens,
        "steps": trainer.step,
        "minutes_trained": round(trainer.elapsed / 60, 2),
        "evaluation": {name: score.to_json() for name, score in scores.items()},
    }
