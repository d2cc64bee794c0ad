"""Prompts as the engine takes them: token ids beside the id and group of the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.protocol import Sampled
from engine.tokenizer import ChatTokenizer
from space.canonical import content_hash
from space.deployment import Workload
from space.errors import InputError
from space.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """One prompt, encoded, and how its answer is sampled: with a seed of its own; None is greedy."""

    id: str
    group: str
    tokens: tuple[int, ...]
    sampling: Sampled | None = None


Unit: TypeAlias = tuple[PreparedPrompt, ...]
"""Prompts that are asked together: as many as the deployment's regime says."""


def units(prompts: Sequence[PreparedPrompt], regime: int, *, rest: bool = False) -> tuple[Unit, ...]:
    """Prompts in groups of `regime`. InputError when none is filled.

    What does not fill a group is left out, since it would be timed in another regime; with `rest` it comes last.
    """
    full = len(prompts) // regime
    if prompts and not full:
        raise InputError(
            f"workload.concurrency = [{regime}]: there are {len(prompts)} prompts, and a regime needs at least as many "
            "prompts as requests; raise workload.search_per_group and confirm_per_group, or add prompts"
        )
    found = tuple(tuple(prompts[i * regime : (i + 1) * regime]) for i in range(full))
    left = tuple(prompts[full * regime :])
    return (*found, left) if rest and left else found


def sampling_of(prompt_id: str, workload: Workload) -> Sampled | None:
    """How a prompt's answer is sampled; None is greedy.

    The seed comes from the prompt's id, so that everybody who answers the prompt draws the same tokens, and the answers
    to different prompts are independent.
    """
    if workload.temperature == 0:
        return None
    seed = int(content_hash(prompt_id), 16)
    return Sampled(temperature=workload.temperature, top_k=workload.top_k, top_p=workload.top_p, seed=seed)


def prepare(
    prompts: Sequence[Prompt], tokenizer: ChatTokenizer, *, workload: Workload, max_tokens: int, max_context: int
) -> tuple[PreparedPrompt, ...]:
    """Encodes prompts; InputError names one that does not fit the context together with its answer."""
    prepared = []
    for prompt in prompts:
        tokens = tokenizer.encode(prompt.messages)
        if len(tokens) + max_tokens > max_context:
            raise InputError(
                f"prompt {prompt.id!r} has {len(tokens)} tokens; with max_tokens {max_tokens} it exceeds "
                f"max_context {max_context}. Raise target.max_context or drop the prompt."
            )
        sampling = sampling_of(prompt.id, workload)
        prepared.append(PreparedPrompt(id=prompt.id, group=prompt.group, tokens=tokens, sampling=sampling))
    return tuple(prepared)
