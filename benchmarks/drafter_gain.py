"""A tuned configuration beside AR and the best n-gram setting on free-form prompts (chat, code, maths), in one run.

    python benchmarks/drafter_gain.py [exports/cpu-smollm2.json] [--per-group 4] [--rounds 3] [--tokens 64]

Prompts are shipped ones that the configuration's search never saw. Without a configuration it is cpu-smollm2's stock:
the bundled drafter with its defaults. One pass over a grid of n-gram settings chooses the
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
from autotune.session import Baselines, fresh_prompts, full_space
from engine.base import Request, Settings
from engine.drafters.checkpoint import load_drafter_checkpoint
from engine.loop import Decoder
from engine.tokenizer import ChatTokenizer
from engine.weights.checkpoint import load_checkpoint
from engine.weights.source import checkpoint_folder, drafter_folder, home_folder
from space.deployment import find_deployment
from space.prompts import read_prompts

FREE_FORM = ("chat", "code", "maths")
GRID = [(k, *sizes) for k, sizes in itertools.product((3, 5, 8), ((3, 1), (3, 2), (5, 2), (5, 5)))]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?")
    parser.add_argument("--per-group", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    if args.config is None:
        name, deployment, seen = "bundled drafter, defaults", find_deployment("cpu-smollm2"), ()
        knobs = Baselines.of(full_space(deployment)).stock.knobs
    else:
        export = read_export(args.config)
        name, deployment, seen = args.config.stem, export.deployment.restore(), export.evidence.prompts.searched
        knobs = export.genome.knobs
    folder = checkpoint_folder(deployment.target.source, home_folder(), print)
    tokenizer, model = ChatTokenizer(folder), load_checkpoint(folder)
    drafter = load_drafter_checkpoint(drafter_folder(deployment.drafter.source), model) if deployment.drafter else None
    decoder = Decoder(model, deployment.target.max_context, drafter)
    everything = [p for p in read_prompts(deployment.workload.prompts) if p.group in FREE_FORM]
    prompts = fresh_prompts(tuple(everything), seen, args.per_group)
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
    totals = {label: sum(timed(i, s) for i in range(len(requests))) for label, s in ngrams.items()}
    best = min(totals, key=totals.__getitem__)
    systems = {"AR": ar, best: ngrams[best], name: Settings.from_knobs(knobs)}
    decoder.generate(requests[0], systems[name])
    seconds: dict[str, dict[int, list[float]]] = {label: {i: [] for i in range(len(requests))} for label in systems}
    for turn in range(args.rounds):
        names = list(systems)[turn % 3 :] + list(systems)[: turn % 3]
        for index, label in itertools.product(range(len(requests)), names):
            seconds[label][index].append(timed(index, systems[label]))
    tokens = sum(map(len, answers.values()))
    print(f"{cpu_model()}, {usable_cores()} cores, torch {torch.__version__}; {len(requests)} prompts, {tokens} tokens")
    speeds = {label: tokens / sum(map(median, times.values())) for label, times in seconds.items()}
    for label, speed in speeds.items():
        deviations = [t / median(times) - 1 for times in seconds[label].values() for t in times]
        ratios = f"{speed / speeds['AR']:.2f}x AR, {speed / speeds[best]:.2f}x best n-gram"
        print(f"{label:<28}{speed:7.1f} tok/s  {ratios}  spread {spread(deviations):.1%}")


if __name__ == "__main__":
    main()
