"""Suffix drafting: the likeliest continuation of the longest suffix that occurred before, from a suffix automaton.

The automaton is built online (Blumer et al. 1985) over prompt and output and counts occurrences, so a continuation
has an estimated probability. Idea: SuffixDecoding (Oliaro et al. 2024); here one automaton a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _State:
    """All substrings with one set of end positions: the longest has `length` tokens."""

    length: int
    link: int
    count: int = 0
    last_end: int = 0
    edges: dict[int, int] = field(default_factory=dict)


class SuffixDrafter:
    """Drafts along the most frequent edges from the longest suffix of the text that occurred earlier."""

    def __init__(self, depth: int, min_match: int, factor: float, min_probability: float) -> None:
        """Takes the longest context used, the shortest that drafts, drafted tokens a matched one, and a floor."""
        self._depth = depth
        self._min_match = min_match
        self._factor = factor
        self._floor = min_probability
        self._states = [_State(length=0, link=-1)]
        self._last = 0
        self._size = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes committed tokens; amortised constant time a token, plus the suffix links that are counted."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        states = self._states
        self._size += 1
        current = len(states)
        states.append(_State(length=states[self._last].length + 1, link=0))
        state = self._last
        while state >= 0 and token not in states[state].edges:
            states[state].edges[token] = current
            state = states[state].link
        if state >= 0:
            states[current].link = self._split(state, token)
        self._last = current
        while current > 0:
            states[current].count += 1
            states[current].last_end = self._size
            current = states[current].link

    def _split(self, state: int, token: int) -> int:
        """Returns the state for `state`'s longest substring plus token, cloning it out of a longer one if needed."""
        states = self._states
        target = states[state].edges[token]
        if states[target].length == states[state].length + 1:
            return target
        old = states[target]
        clone = len(states)
        states.append(_State(states[state].length + 1, old.link, old.count, old.last_end, dict(old.edges)))
        old.link = clone
        while state >= 0 and states[state].edges.get(token) == target:
            states[state].edges[token] = clone
            state = states[state].link
        return clone

    def _match(self) -> tuple[int, int]:
        """The state and length of the longest suffix, at most depth tokens, that occurred before its end."""
        states = self._states
        state = states[self._last].link
        while state > 0 and states[states[state].link].length >= self._depth:
            state = states[state].link
        return state, min(states[state].length, self._depth) if state > 0 else 0

    def propose(self, limit: int) -> list[int]:
        """Returns at most `limit` tokens; stops where the estimated probability falls below the floor."""
        state, matched = self._match()
        if matched < self._min_match:
            return []
        states, probability, draft = self._states, 1.0, list[int]()
        allowed = min(limit, max(1, int(self._factor * matched)))
        while len(draft) < allowed and states[state].edges:
            edges = states[state].edges
            token = max(edges, key=lambda t: (states[edges[t]].count, states[edges[t]].last_end))
            probability *= states[edges[token]].count / sum(states[target].count for target in edges.values())
            if probability < self._floor:
                break
            draft.append(token)
            state = edges[token]
        return draft
