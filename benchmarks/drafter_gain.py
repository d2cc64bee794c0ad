"""A tuned configuration beside AR and the best n-gram setting on free-form prompts (chat, code, maths), in one run.

    python benchmarks/drafter_gain.py exports/cpu-smollm2.json [--per-group 4] [--rounds 3] [--tokens 64]

Prompts are shipped ones that the configuration's search never saw. One pass over a grid of n-gram settings chooses the
fastest; then AR, that one and the configuration answer every prompt in turns. Every answer must equal AR's, token by
token. Prints tokens/s (sums of median seconds), their ratios, and the spread of the repeats.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from archive.export import read_export
from archive.summary import spread
from autotune.environment import cpu_model, packs_weights, usable_cores
from autotune.session import fresh_prompts
from engine.base import Request, Settings
from engine.drafters.checkpoint import load_drafter_checkpoint
from engine.loop import Decoder
from engine.tokenizer import ChatTokenizer
from engine.weights.checkpoint import load_checkpoint
from engine.weights.source import checkpoint_folder, drafter_folder, home_folder
from space.prompts import read_prompts

FREE_FORM = ("chat", "code", "maths")
GRID = [(k, *sizes) for k, sizes in itertools.product((3, 5, 8), ((3, 1), (3, 2), (5, 2), (5, 5)))]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--per-group", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    export = read_export(args.config)
    deployment = export.deployment.restore()
    folder = checkpoint_folder(deployment.target.source, home_folder(), print)
    tokenizer, model = ChatTokenizer(folder), load_checkpoint(folder)
    drafter = load_drafter_checkpoint(drafter_folder(deployment.drafter.source), model) if deployment.drafter else None
    decoder = Decoder(model, deployment.target.max_context, drafter)
    everything = [p for p in read_prompts(deployment.workload.prompts) if p.group in FREE_FORM]
    prompts = fresh_prompts(tuple(everything), export.evidence.prompts.searched, args.per_group)
    stop = model.config.stop_ids
    requests = [Request(prompt=tokenizer.encode(p.messages), max_tokens=args.tokens, stop_ids=stop) for p in prompts]
    layout = {"threads": usable_cores(), "linear_path": "packed" if packs_weights() else "plain"}
    answers: dict[int, tuple[int, ...]] = {}

    def timed(index: int, settings: Settings) -> float:
        started = time.perf_counter()
        tokens = decoder.generate(requests[index], settings).tokens
        seconds = time.perf_counter() - started
        if answers.setdefault(index, tokens) != tokens:
            sys.exit(f"prompt {prompts[index].id}: {settings} gives other tokens than AR")
        return seconds

    ar = Settings(**layout)
    ngrams = {
        f"n-gram K={k} {longest}..{shortest}": Settings(
            drafter="ngram", draft_length=k, ngram_max=longest, ngram_min=shortest, **layout
        )
        for k, longest, shortest in GRID
    }
    decoder.generate(requests[0], ar)
    for index in range(len(requests)):
        timed(index, ar)
    totals = {name: sum(timed(i, s) for i in range(len(requests))) for name, s in ngrams.items()}
    best = min(totals, key=totals.__getitem__)
    systems = {"AR": ar, best: ngrams[best], args.config.stem: Settings.from_knobs(export.genome.knobs)}
    decoder.generate(requests[0], systems[args.config.stem])
    seconds: dict[str, dict[int, list[float]]] = {name: {i: [] for i in range(len(requests))} for name in systems}
    for turn in range(args.rounds):
        names = list(systems)[turn % 3 :] + list(systems)[: turn % 3]
        for index, name in itertools.product(range(len(requests)), names):
            seconds[name][index].append(timed(index, systems[name]))
    tokens = sum(map(len, answers.values()))
    print(f"{cpu_model()}, {usable_cores()} cores, torch {torch.__version__}; {len(requests)} prompts, {tokens} tokens")
    speeds = {name: tokens / sum(map(median, times.values())) for name, times in seconds.items()}
    for name, speed in speeds.items():
        deviations = [t / median(times) - 1 for times in seconds[name].values() for t in times]
        ratios = f"{speed / speeds['AR']:.2f}x AR, {speed / speeds[best]:.2f}x best n-gram"
        print(f"{name:<28}{speed:7.1f} tok/s  {ratios}  spread {spread(deviations):.1%}")


if __name__ == "__main__":
    main()
