"""Draft length by load and measured acceptance: long drafts for few requests, none where rows are dear.

Ideas: batch-size schedules (vLLM) and tiers by measured acceptance (SGLang); here the length with the most expected
tokens per cost, with hysteresis.
"""

from engine.batch.acceptance import Acceptance

PROBE = 32
"""After this many steps without drafts one short draft is made: what is not drafted is not measured either."""


class LengthSchedule:
    """Chooses the draft length of each step, 0 to `longest`."""

    def __init__(self, longest: int, row_share: float, hysteresis: float) -> None:
        """Takes what the choice weighs.

        Args:
            longest: most tokens drafted.
            row_share: what a row adds to a target pass, as a share of what the pass costs without rows.
            hysteresis: another length is taken when it promises to be better by this share.
        """
        self._longest = longest
        self._row_share = row_share
        self._hysteresis = hysteresis
        self._current = longest
        self._idle = 0

    def length(self, requests: int, acceptance: Acceptance) -> int:
        """The draft length for a pass over `requests` requests."""
        values = self._values(requests, acceptance)
        best = max(range(len(values)), key=lambda length: (values[length], -length))
        if values[best] > values[self._current] * (1 + self._hysteresis):
            self._current = best
        self._idle = self._idle + 1 if self._current == 0 else 0
        if self._idle > PROBE:
            self._idle = 0
            return min(1, self._longest)
        return self._current

    def _values(self, requests: int, acceptance: Acceptance) -> list[float]:
        """Expected tokens of a request per cost of the pass, for every length."""
        survival = acceptance.survival(self._longest)
        rows = (requests * (1 + length) for length in range(self._longest + 1))
        return [(1 + sum(survival[:length])) / (1 + self._row_share * n) for length, n in enumerate(rows)]
