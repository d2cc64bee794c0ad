"""How many genomes a second replay evaluates on one core: 100 prompts, 128 tokens each, unless a recording is given.

    python benchmarks/replay_speed.py [--recording ~/.cache/specpilot/recordings/NAME.npz] [--genomes 2000]

Without a recording, answers and lattices are random with the shape of a real drafter (7 positions, 16 candidates, pair
scores) and an acceptance like one: speed depends on shapes and on tau only. Genomes are drawn from the space of a CPU
deployment. Tables are made on first use; the first round pays for them, and the second is what a search sees.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune.replay.recording import POLICY, Recording, drafting
from autotune.replay.replay import Replay
from engine.base import Request, Settings
from engine.record import Lattices, Trace
from space.catalog import cpu_space

SPACE = cpu_space(cores=1, neural=("dflash",))
POSITIONS, WIDTH, VOCABULARY = 7, 16, 49152


def random_trace(rng: numpy.random.Generator, tokens: int) -> Trace:
    """An answer that repeats itself now and then, and lattices whose best candidate is right six times in ten."""
    answer = rng.integers(0, 300, tokens).tolist()
    places = tokens - 1
    ids = numpy.sort(rng.integers(300, VOCABULARY, (places, POSITIONS, WIDTH)), -1)
    scores = rng.normal(0, 2, (places, POSITIONS, WIDTH, WIDTH))
    for place in range(places):
        for ahead in range(min(POSITIONS, places - place)):
            rank = min(WIDTH, int(rng.geometric(0.6)) - 1)
            if rank < WIDTH:
                ids[place, ahead, rank] = answer[place + 1 + ahead]
                scores[place, ahead, :, rank] = 6 - rank
    edges = scores - numpy.log(numpy.exp(scores).sum(-1, keepdims=True))
    lattices = Lattices(
        lengths=numpy.full(places, POSITIONS, numpy.uint8), ids=ids.astype(numpy.int32), edges=edges.astype("float16")
    )
    prompt = tuple(rng.integers(0, 300, 100).tolist())
    return Trace(
        request=Request(prompt=prompt, max_tokens=tokens),
        tokens=tuple(answer),
        chains=ids[:, :, 0].astype(numpy.int32),
        first=lattices,
        second=lattices,
    )


def draw(rng: random.Random, **fixed: str | int | float) -> Settings:
    """A genome of the space with some knobs held."""
    held = SPACE.fixed(fixed)
    return Settings.from_knobs({name: value for name, value in held.sample(rng).items() if name in POLICY})


KINDS: dict[str, Callable[[random.Random], Settings]] = {
    "chain": lambda rng: draw(rng, drafter="dflash", tree="chain", level_one="none"),
    "chain, second pass": lambda rng: draw(rng, drafter="dflash", tree="chain", level_one="second_pass"),
    "fixed tree": lambda rng: draw(rng, drafter="dflash", tree="fixed", tree_branch="none", level_one="none"),
    "best-first tree": lambda rng: draw(rng, drafter="dflash", tree="best_first", tree_branch="none", level_one="none"),
    "n-gram": lambda rng: draw(rng, drafter="ngram"),
    "suffix": lambda rng: draw(rng, drafter="suffix", tree="chain"),
}
SIMULATED: dict[str, Settings] = {
    "margin": Settings(drafter="dflash", draft_length=7, tree="best_first", level_one="margin"),
    "suffix_prune": Settings(drafter="dflash", draft_length=7, tree="best_first", level_one="suffix_prune"),
    "suffix branch": Settings(drafter="dflash", draft_length=7, tree="best_first", tree_branch="suffix"),
    "tree of a suffix automaton": Settings(drafter="suffix", draft_length=7, tree="best_first"),
}


def timed(replay: Replay, policies: list[Settings]) -> float:
    started = time.process_time()
    replay.evaluate(policies)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", type=Path)
    parser.add_argument("--genomes", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    if options.recording is not None:
        recording = Recording.load(options.recording)
    else:
        numbers = numpy.random.default_rng(0)
        traces = tuple(random_trace(numbers, options.tokens) for _ in range(options.prompts))
        recording = Recording(kind="dflash", bound=drafting(Settings()), traces=traces)
    replay, rng = Replay(recording), random.Random(0)
    tokens = sum(len(trace.tokens) for trace in recording.traces)
    print(f"{len(recording.traces)} answers, {tokens} tokens; CPU seconds of one process")
    print(f"{'policy':<28}{'first round':>14}{'genomes/s':>12}{'spread':>9}{'median tau':>12}")
    for name, kind in KINDS.items():
        policies = [kind(rng) for _ in range(options.genomes)]
        first = timed(replay, policies)
        rounds = [options.genomes / timed(replay, policies) for _ in range(3)]
        spread = (max(rounds) - min(rounds)) / statistics.median(rounds)
        tau = statistics.median(figures.tau for figures in replay.evaluate(policies[:200]))
        print(f"{name:<28}{first:>12.1f} s{statistics.median(rounds):>12.0f}{spread:>9.0%}{tau:>12.2f}")
    for name, policy in SIMULATED.items():
        policy = replace(policy, threads=1)
        print(f"{name:<28}{'':>14}{1 / timed(replay, [policy]):>12.1f}   step by step")


if __name__ == "__main__":
    main()
