"""Prompts as the engine takes them: token ids beside the id and group of the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.tokenizer import ChatTokenizer
from space.errors import InputError
from space.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """One prompt, encoded."""

    id: str
    group: str
    tokens: tuple[int, ...]


def prepare(
    prompts: Sequence[Prompt], tokenizer: ChatTokenizer, *, max_tokens: int, max_context: int
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
        prepared.append(PreparedPrompt(id=prompt.id, group=prompt.group, tokens=tokens))
    return tuple(prepared)
