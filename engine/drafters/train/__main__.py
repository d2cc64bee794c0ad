"""Command line of drafter training: `python -m engine.drafters.train --target FILE --out FOLDER`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import structlog
import torch

from engine.drafters.train.options import TrainOptions
from engine.drafters.train.run import Places, train_drafter
from space.errors import InputError, SpecPilotError

_HELP = {
    "seed": "random seed of text, initial weights and batches",
    "chunks": "times that fresh text replaces the old one during a run; little text is soon learned by heart",
    "prompts": "user turns that the target samples for a chunk; their taps take most of the memory",
    "turn_tokens": "most tokens sampled for a user turn",
    "answer_tokens": "most tokens of a greedy answer",
    "slots": "texts written at once",
    "held": "texts kept from training to measure acceptance on",
    "layers": "layers of the drafter",
    "taps": "target layers whose output the drafter reads, comma-separated, 0-based",
    "block": "rows of a draft: one anchor and block - 1 drafted tokens",
    "markov_rank": "rank of the tied Markov head; 0: none, the plain public layout",
    "head_dropout": "share of rows trained without the head",
    "draft_vocabulary": "most frequent tokens of the answers, the only ones drafted; 0: all tokens",
    "texts": "texts a step",
    "anchors": "anchors a text and step",
    "muon_rate": "peak learning rate of matrices",
    "adam_rate": "peak learning rate of the rest",
    "warm_up": "share of the budget in which the learning rate rises",
    "steps": "train for so many steps instead of --seconds (exactly repeatable)",
    "seconds": "train for so many seconds",
}


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def parse(arguments: Sequence[str]) -> tuple[TrainOptions, Places, torch.device]:
    """Turns command-line arguments into a run's options, places and device."""
    parser = argparse.ArgumentParser(prog="python -m engine.drafters.train", description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="GGUF file or Hugging Face folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; the same command resumes it")
    parser.add_argument("--seeds", type=Path, help="file of first phrases of user turns, one a line")
    parser.add_argument("--evaluate", type=Path, nargs="*", default=[], help="prompt files to measure tau on")
    parser.add_argument("--evaluate-prompts", type=int, default=20, help="prompts of each (20)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    for field in fields(TrainOptions):
        kind = _layers if field.name == "taps" else type(field.default)
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=field.default, help=f"{_HELP[field.name]} ({field.default})")
    values = vars(parser.parse_args(arguments))
    if values["device"] not in ("cpu", "cuda"):
        raise InputError(f"--device {values['device']!r} is not known; allowed: cpu, cuda")
    places = Places(
        target=values["target"],
        out=values["out"],
        seeds=values["seeds"],
        evaluation=tuple(values["evaluate"]),
        per_set=values["evaluate_prompts"],
    )
    options = TrainOptions(**{field.name: values[field.name] for field in fields(TrainOptions)})
    return options, places, torch.device(values["device"])


def main() -> int:
    """Runs the command; 0 when trained, 2 when what was given cannot be used."""
    try:
        options, places, device = parse(sys.argv[1:])
        train_drafter(options, places, device, ["python -m engine.drafters.train", *sys.argv[1:]])
    except SpecPilotError as error:
        structlog.get_logger().error(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
