"""`bench --replay`: tokens a step of chains and trees at equal node budgets, on sets of prompts, by exact replay.

The target answers each prompt once (and never again: recordings are kept in the home folder); every policy of the
table is then replayed on its answers. Nothing is timed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.environment import packs_weights, usable_cores
from autotune.options import ReplayOptions
from autotune.prepared import prepare
from autotune.replay.recording import Recording, drafting, recording_path
from autotune.replay.replay import Replay
from autotune.terminal import Console, ReplayLine, notice, show_replay
from engine.base import Request, Settings
from engine.drafters.checkpoint import DraftModel, load_drafter_checkpoint
from engine.loop import Decoder
from engine.record import record
from engine.tokenizer import ChatTokenizer
from engine.weights.checkpoint import load_checkpoint
from engine.weights.source import checkpoint_folder, drafter_folder, home_folder
from space.benchmarks import benchmark_path
from space.deployment import Deployment, find_deployment
from space.prompts import Prompt, read_prompts

BUDGETS = (8, 16, 32, 64)
_LONGEST = 32
_COPIED: Mapping[str, Settings] = {
    "n-gram chain": Settings(drafter="ngram", ngram_min=1, ngram_max=3),
    "suffix chain": Settings(drafter="suffix", min_probability=0.0),
}
_PARALLEL: Mapping[str, Settings] = {
    "chain": Settings(),
    "chain, second pass": Settings(level_one="second_pass"),
    "fixed tree, width 4": Settings(tree="fixed", tree_width=4),
    "best-first tree": Settings(tree="best_first", tree_width=16),
    "best-first, suffix first": Settings(tree="best_first", tree_width=16, suffix_first=4),
    "best-first, suffix branch": Settings(tree="best_first", tree_width=16, tree_branch="suffix"),
    "best-first, second pass": Settings(tree="best_first", tree_width=16, level_one="second_pass"),
    "best-first, margin": Settings(tree="best_first", tree_width=16, level_one="margin", survival_floor=0.02),
}
"""Policies of a parallel drafter; the node budget is set beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engine:
    """The loaded target and drafter of a deployment, and where their files are."""

    target: Path
    drafter: Path | None
    decoder: Decoder
    checkpoint: DraftModel | None

    @classmethod
    def of(cls, deployment: Deployment, say: Callable[[str], None]) -> "_Engine":
        folder = checkpoint_folder(deployment.target.source, home_folder(), say)
        drafter = drafter_folder(deployment.drafter.source) if deployment.drafter else None
        model = load_checkpoint(folder)
        checkpoint = load_drafter_checkpoint(drafter, model) if drafter is not None else None
        decoder = Decoder(model, deployment.target.max_context, checkpoint)
        return cls(target=folder, drafter=drafter, decoder=decoder, checkpoint=checkpoint)

    def recording(self, requests: Sequence[Request], settings: Settings, say: Callable[[str], None]) -> Recording:
        """The recording of these requests; made where there is none yet."""
        path = recording_path(home_folder(), self.target, self.drafter, requests, settings)
        if path.exists():
            return Recording.load(path)
        say(f"recording {len(requests)} answers of at most {requests[0].max_tokens} tokens")
        traces = tuple(record(self.decoder, request, settings, self.checkpoint) for request in requests)
        kind = self.checkpoint.kind if self.checkpoint is not None else "none"
        recording = Recording(kind=kind, bound=drafting(settings), traces=traces)
        recording.save(path)
        return recording


def evenly(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """At most `count` prompts, evenly spaced over the file."""
    count = min(count, len(prompts))
    return tuple(prompts[index * len(prompts) // count] for index in range(count))


def policies(recording: Recording) -> dict[str, Settings]:
    """What can be replayed on a recording, by name; the node budget is set beside."""
    scored = all(len(trace.first.lengths) == len(trace.chains) for trace in recording.traces)
    neural = {} if recording.kind == "none" else _PARALLEL if scored else {"chain": Settings()}
    return {**{name: replace(policy, drafter=recording.kind) for name, policy in neural.items()}, **_COPIED}


def with_budget(policy: Settings, budget: int) -> Settings:
    """A policy that drafts at most `budget` nodes, and at most 32 deep."""
    return replace(policy, draft_length=min(budget, _LONGEST), tree_nodes=budget)


def lines(name: str, recording: Recording) -> list[ReplayLine]:
    """The table of one set of prompts."""
    replay = Replay(recording)
    return [
        ReplayLine(
            prompts=name,
            policy=policy,
            taus=tuple(
                figures.tau for figures in replay.evaluate([with_budget(settings, budget) for budget in BUDGETS])
            ),
        )
        for policy, settings in policies(recording).items()
    ]


def compare(console: Console, options: ReplayOptions) -> int:
    """Prints the table of each set of prompts."""
    deployment = find_deployment(options.deployment)
    sources = [str(benchmark_path(name, options.benchmark_dir)) for name in options.benchmark] or [
        deployment.workload.prompts
    ]
    sets = [(Path(source).stem, evenly(read_prompts(source), options.prompts)) for source in sources]

    def say(text: str) -> None:
        notice(console, text)

    engine = _Engine.of(deployment, say)
    tokenizer, context = ChatTokenizer(engine.target), deployment.target.max_context
    greedy = deployment.workload.model_copy(update={"temperature": 0.0})
    settings = Settings(threads=usable_cores(), linear_path="packed" if packs_weights() else "plain")
    found: list[ReplayLine] = []
    for name, prompts in sets:
        requests = [
            Request(prompt=prompt.tokens, max_tokens=options.max_tokens, stop_ids=engine.decoder.model.config.stop_ids)
            for prompt in prepare(
                prompts, tokenizer, workload=greedy, max_tokens=options.max_tokens, max_context=context
            )
        ]
        say(f"{name}: {len(requests)} prompts")
        found += lines(name, engine.recording(requests, settings, say))
    show_replay(console, deployment.name, BUDGETS, found)
    return 0
