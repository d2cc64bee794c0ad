"""Suffix drafting: the likeliest continuation of the longest suffix that occurred before, from a suffix automaton.

The automaton is built online (Blumer et al. 1985) over prompt and output and counts occurrences, so a continuation
has an estimated probability. Idea: SuffixDecoding (Oliaro et al. 2024); here one automaton a request.
Counting every suffix of a repetitive text would take quadratic time: only those that a draft can reach are counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log

from torch import Tensor

from engine.base import Settings


@dataclass(slots=True)
class _State:
    """All substrings with one set of end positions: the longest has `length` tokens, the shortest `link`'s and one.

    `count` and `last_end` hold for states whose shortest string is within the drafter's reach.
    """

    length: int
    link: int
    count: int = 0
    last_end: int = 0
    edges: dict[int, int] = field(default_factory=dict)


class SuffixDrafter:
    """Drafts along the most frequent edges from the longest suffix of the text that occurred earlier."""

    def __init__(self, depth: int, min_match: int, factor: float, min_probability: float, draft_length: int) -> None:
        """Takes the longest context used, the shortest that drafts, and what ends a draft.

        Args:
            depth: longest suffix that is looked up, in tokens.
            min_match: shortest match that drafts at all.
            factor: most drafted tokens per matched one.
            min_probability: a draft ends where its estimated probability falls below this.
            draft_length: most tokens drafted, whatever the limit of a call.
        """
        self._depth = depth
        self._min_match = min_match
        self._factor = factor
        self._floor = min_probability
        self._longest = draft_length
        self._reach = depth + draft_length
        self._states = [_State(length=0, link=-1)]
        self._last = 0
        self._near = 0
        """The state of the text's suffix of `_reach` tokens (of the whole text while shorter), or of a longer one."""
        self._size = 0

    @classmethod
    def from_settings(cls, settings: Settings, min_match: int) -> "SuffixDrafter":
        """A drafter with a genome's knobs; who asks says what the shortest match is."""
        s = settings
        return cls(s.suffix_depth, min_match, s.suffix_factor, s.min_probability, s.draft_length)

    @property
    def taps(self) -> tuple[int, ...]:
        """None: it reads text only."""
        return ()

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Takes committed tokens; amortised constant time a token, plus at most `depth + draft_length` counts."""
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
        self._count(token)

    def _count(self, token: int) -> None:
        states = self._states
        # A split may have left the near state with longer suffixes only: they too end here, and are shortened below.
        self._near = state = self._shorten(states[self._near].edges[token], self._reach)
        while state > 0:
            states[state].count += 1
            states[state].last_end = self._size
            state = states[state].link

    def _shorten(self, state: int, length: int) -> int:
        """Follows suffix links to the state that holds the suffix of `length` tokens."""
        states = self._states
        while state > 0 and states[states[state].link].length >= length:
            state = states[state].link
        return state

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

    def match(self, depth: int) -> tuple[int, int]:
        """The state and length of the longest suffix, at most `depth` tokens, that occurred before its end."""
        states = self._states
        state = self._shorten(self._near, depth)
        if state == self._last:  # holds the strings that end here only
            state = max(0, states[state].link)
        return state, min(states[state].length, depth)

    def propose(self, limit: int) -> list[int]:
        """Returns at most `limit` tokens; stops where the estimated probability falls below the floor."""
        state, matched = self.match(self._depth)
        if matched < self._min_match:
            return []
        draft = list[int]()
        for token, probability in self.continuation(state, self._allowed(limit, matched)):
            if probability < self._floor:
                break
            draft.append(token)
        return draft

    def continuation(self, state: int, limit: int) -> Iterator[tuple[int, float]]:
        """At most `limit` tokens of the likeliest continuation of a state, each with its probability so far."""
        states, probability = self._states, 1.0
        for _ in range(limit):
            edges = states[state].edges
            if not edges:
                return
            token = max(edges, key=lambda t: (states[edges[t]].count, states[edges[t]].last_end))
            probability *= states[edges[token]].count / sum(states[target].count for target in edges.values())
            yield token, probability
            state = edges[token]

    def _allowed(self, limit: int, matched: int) -> int:
        return min(limit, self._longest, max(1, int(self._factor * matched)))

    @property
    def floor(self) -> float:
        """The smallest estimated probability of a path that is drafted."""
        return self._floor

    def depth(self, limit: int) -> int:
        """How many tokens deep it may draft now; 0 where no suffix is long enough."""
        _, matched = self.match(self._depth)
        return self._allowed(limit, matched) if matched >= self._min_match else 0

    @property
    def root(self) -> int:
        """The state of the longest suffix that occurred before; -1 where none is long enough."""
        state, matched = self.match(self._depth)
        return state if matched >= self._min_match else -1

    def after(self, state: int) -> list[tuple[float, int, int]]:
        """What followed a state's text: minus the log of the share of its occurrences, token, the state behind it.

        The most frequent comes first; of equals, the latest.
        """
        states, edges = self._states, self._states[state].edges
        total = sum(states[target].count for target in edges.values())
        found = sorted(edges.items(), key=lambda edge: (-states[edge[1]].count, -states[edge[1]].last_end))
        return [(log(total / states[target].count), token, target) for token, target in found if states[target].count]
