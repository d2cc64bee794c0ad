"""Prompt lookup: the continuation of the latest earlier occurrence of the last n tokens, longest n first.

Idea: Saxena, prompt lookup decoding (2023); also vLLM's n-gram speculation.
"""

from collections.abc import Sequence


class NgramDrafter:
    """Looks up n-grams of `shortest` to `longest` tokens in prompt and output."""

    def __init__(self, longest: int, shortest: int) -> None:
        """Takes both lengths, in tokens; shortest <= longest."""
        self._lengths = range(shortest, longest + 1)
        self._text: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes committed tokens. An n-gram is known once a token follows it."""
        for token in tokens:
            position = len(self._text)
            for n in self._lengths:
                if n > position:
                    break
                self._next[tuple(self._text[position - n :])] = position
            self._text.append(token)

    def propose(self, limit: int) -> list[int]:
        """Returns at most `limit` tokens that followed the longest n-gram found."""
        for n in reversed(self._lengths):
            start = self._next.get(tuple(self._text[-n:])) if n <= len(self._text) else None
            if start is not None:
                return self._text[start : start + limit]
        return []
