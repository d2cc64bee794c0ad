"""The prompts of a training run: user turns that the target samples from a few first words, never a benchmark's."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

import structlog

from engine.drafters.train.generate import Decoding, SlotGenerator
from engine.drafters.train.seeds import SEEDS
from engine.drafters.train.target import Target
from engine.drafters.train.target_files import Chat
from space.errors import InputError
from space.prompts import Prompt, read_prompts

_RUN = 13  # words in a row shared with an evaluation prompt that make a turn a copy (the usual decontamination rule)
_LONG = 32  # characters from which a seed found inside an evaluation prompt is a copy, not common phrasing
_log = structlog.get_logger()


def read_evaluation(paths: Sequence[Path]) -> dict[str, tuple[Prompt, ...]]:
    """Reads evaluation files by their stems; they are measured on and never trained on."""
    sets: dict[str, tuple[Prompt, ...]] = {}
    for path in paths:
        if path.stem in sets:
            raise InputError(f"--evaluate {path}: a file named {path.stem} was given already; rename one")
        sets[path.stem] = read_prompts(str(path))
    return sets


def read_seeds(path: Path | None, evaluation: Sequence[Path]) -> tuple[str, ...]:
    r"""Reads one seed a line (`\n` stands for a line break); without a path, the built-in ones.

    Raises:
        InputError: The file is an evaluation set, or a seed is text of one.
    """
    if path is None:
        return SEEDS
    try:
        text = path.read_text(encoding="utf-8")
        for other in evaluation:
            if path.samefile(other) or text == other.read_text(encoding="utf-8"):
                raise InputError(f"--seeds {path} is the evaluation set {other}; training on it would be cheating")
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
    seeds = tuple(line.replace("\\n", "\n") for line in text.splitlines())
    if not seeds:
        raise InputError(f"--seeds {path} is empty; give one first phrase of a user turn a line")
    for name, prompts in read_evaluation(evaluation).items():
        for prompt in prompts:
            _refuse_copies(seeds, prompt, path, name)
    return seeds


def _refuse_copies(seeds: Sequence[str], prompt: Prompt, path: Path, name: str) -> None:
    for message in prompt.messages:
        for seed in seeds:
            if len(seed) >= _LONG and seed in message["content"]:
                raise InputError(f"--seeds {path}: {seed[:60]!r} is text of evaluation set {name}; take it out")


def _runs(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + _RUN]) for i in range(max(1, len(words) - _RUN + 1))}


def sample_turns(
    target: Target,
    chat: Chat,
    *,
    seeds: Sequence[str],
    count: int,
    max_tokens: int,
    slots: int,
    generator: random.Random,
    evaluation: Sequence[Prompt] = (),
    deadline: float = math.inf,
) -> list[list[int]]:
    """Samples user turns (T = 1, min-p 0.02) and returns them as whole prompts, ready to be answered.

    Drops empty turns, repeats, and turns that share 13 words in a row with an evaluation prompt (or are one). Torch's
    global random state decides the samples; `generator` only the order of the seeds.
    """
    starts = [chat.encode(chat.before + seeds[i % len(seeds)]) for i in range(count)]
    generator.shuffle(starts)
    decoding = Decoding(max_new=max_tokens, stop=chat.stop, temperature=1.0, min_p=0.02)
    turns = SlotGenerator(target, starts, decoding, slots).run(deadline)
    head, tail = len(chat.encode(chat.before)), chat.encode(chat.after)
    forbidden = set().union(*(_runs(m["content"]) for p in evaluation for m in p.messages))
    prompts: dict[tuple[int, ...], list[int]] = {}
    copies = 0
    for start, turn in zip(starts, turns, strict=True):
        body = start[head:] + [t for t in turn if t != chat.stop]
        text = chat.tokenizer.decode(body)
        if not text.strip():
            continue
        if forbidden and not forbidden.isdisjoint(_runs(text)):
            copies += 1
            continue
        prompts.setdefault(tuple(body), start[:head] + body + tail)
    _log.info("turns sampled", asked=count, kept=len(prompts), copies_of_evaluation=copies)
    return list(prompts.values())
