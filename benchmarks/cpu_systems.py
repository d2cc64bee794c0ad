"""Tokens a second on this CPU: our AR beside transformers' generate and, where it is installed, vLLM.

    python benchmarks/cpu_systems.py [--vllm-python PATH] [--rounds 3] [--tokens 64]

Every system answers the search prompts of cpu-smollm2 one at a time, greedily, end of sequence ignored, the same bf16
checkpoint. Systems take turns prompt by prompt; each figure is the median over rounds, with its spread.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.client import Launch, WorkerClient
from autotune.environment import cpu_model, usable_cores
from autotune.prepared import PreparedPrompt, prepare
from autotune.session import deployment_prompts, full_space
from engine.protocol import Generate
from engine.tokenizer import ChatTokenizer
from engine.weights.source import checkpoint_folder, home_folder
from space.catalog import ar_genome
from space.deployment import find_deployment

HERE = Path(__file__).resolve().parent
PAUSE = 1.0  # seconds: some systems' threads spin for a while after an answer, and would slow the next one
Answer = Callable[[PreparedPrompt, int], tuple[tuple[int, ...], float]]


class Peer:
    """Another system in a process of its own."""

    def __init__(self, command: list[str]) -> None:
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
            start_new_session=True,
        )
        self.name = json.loads(self.process.stdout.readline())["ready"]

    def __call__(self, prompt: PreparedPrompt, count: int) -> tuple[tuple[int, ...], float]:
        started = time.perf_counter()
        self.process.stdin.write(json.dumps({"prompt": prompt.tokens, "max_tokens": count}) + "\n")
        self.process.stdin.flush()
        tokens = json.loads(self.process.stdout.readline())["tokens"]
        return tuple(tokens), time.perf_counter() - started

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def ours(client: WorkerClient, knobs: dict[str, str | int | float | bool]) -> Answer:
    def answer(prompt: PreparedPrompt, count: int) -> tuple[tuple[int, ...], float]:
        request = Generate(knobs=knobs, prompt=prompt.tokens, max_tokens=count, stop_ids=())
        reply, seconds = client.generate(request, 600.0)
        return reply.tokens, seconds

    return answer


def measure(systems: dict[str, Answer], prompts: tuple[PreparedPrompt, ...], rounds: int, count: int) -> None:
    tokens = {name: {} for name in systems}
    speeds = {name: [] for name in systems}
    for answer in systems.values():
        answer(prompts[0], 8)
    for _ in range(rounds):
        seconds = dict.fromkeys(systems, 0.0)
        for prompt in prompts:
            for name, answer in systems.items():
                time.sleep(PAUSE)
                tokens[name][prompt.id], took = answer(prompt, count)
                seconds[name] += took
        for name in systems:
            speeds[name].append(len(prompts) * count / seconds[name])
    reference = tokens["ours, AR"]
    print(f"{'system':<34} {'tok/s':>7} {'spread':>7} {'our AR is':>10}   same tokens as our AR")
    for name in systems:
        middle = statistics.median(speeds[name])
        spread = 1.4826 * statistics.median(abs(s - middle) for s in speeds[name]) / middle
        ratio = statistics.median(a / b for a, b in zip(speeds["ours, AR"], speeds[name], strict=True))
        same = sum(a == b for p in reference for a, b in zip(reference[p], tokens[name][p], strict=True))
        print(f"{name:<34} {middle:7.1f} {spread:7.1%} {ratio:9.2f}x   {same} of {len(prompts) * count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm-python", help="the interpreter of an environment that has vLLM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    deployment = find_deployment("cpu-smollm2")
    folder = checkpoint_folder(deployment.target.source, home_folder(), print)
    _, split = deployment_prompts(deployment)
    prompts = prepare(split.search, ChatTokenizer(folder), max_tokens=options.tokens, max_context=2048)
    launch = Launch(role="candidate", model=folder, max_context=2048, threads=usable_cores())
    space = full_space()
    print(f"{cpu_model()}, {usable_cores()} cores; {len(prompts)} x {options.tokens} tokens, {options.rounds} rounds")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(WorkerClient(launch))
        packed = stack.enter_context(WorkerClient(launch))
        ar = ar_genome(space).knobs
        systems: dict[str, Answer] = {
            "ours, AR": ours(client, ar),
            "ours, AR, packed weights": ours(packed, {**ar, "linear_path": "packed"}),
            "ours, n-gram K=6": ours(client, {**ar_genome(space).knobs, "drafter": "ngram", "draft_length": 6}),
        }
        commands = [("", [sys.executable, str(HERE / "peer_transformers.py"), str(folder)])]
        if options.vllm_python:
            script = [options.vllm_python, str(HERE / "peer_vllm.py"), str(folder)]
            commands += [(", AR", [*script, "ar"]), (", n-gram K=6", [*script, "ngram"])]
        for suffix, command in commands:
            peer = Peer(command)
            stack.callback(peer.close)
            systems[peer.name + suffix] = peer
        measure(systems, prompts, options.rounds, options.tokens)


if __name__ == "__main__":
    main()
