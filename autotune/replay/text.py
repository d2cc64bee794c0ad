"""Drafts that are copied from the text, at all places: what each n-gram length and each suffix finds there.

What they draft depends on the committed text only, so it is looked up once a place, by the drafters themselves, and
every threshold is applied afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from autotune.replay.places import LONGEST, Counts, Drafted, Places, leading
from engine.base import Drafter, Settings
from engine.drafters.ngram import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.record import Trace


def _walk(traces: Sequence[Trace], places: Places, make: Callable[[], Drafter]) -> Iterator[tuple[int, Drafter]]:
    """Each place with a drafter that has seen what is committed there."""
    for trace, start in zip(traces, places.starts, strict=True):
        drafter = make()
        drafter.extend((*trace.request.prompt, trace.tokens[0]))
        for index, token in enumerate(trace.tokens[1:]):
            yield int(start) + index, drafter
            drafter.extend((token,))


@dataclass(frozen=True, slots=True)
class Found:
    """Chains at each place: [places] their lengths and how far the answer follows them."""

    lengths: Counts
    matched: Counts


def ngrams(traces: Sequence[Trace], places: Places, length: int) -> Found:
    """What n-grams of one length find."""
    chains = numpy.full((places.count, LONGEST), -1, numpy.int32)
    for place, drafter in _walk(traces, places, lambda: NgramDrafter(longest=length, shortest=length)):
        draft = drafter.propose(LONGEST)
        chains[place, : len(draft)] = draft
    return Found((chains >= 0).sum(1, dtype=numpy.int16), places.matches(chains))


def longest_ngram(found: Sequence[Found]) -> Found:
    """The longest of several lengths that finds anything; `found` is in ascending order of length."""
    first, *longer = found
    lengths, matched = first.lengths, first.matched
    for better in longer:
        there = better.lengths > 0
        lengths = numpy.where(there, better.lengths, lengths)
        matched = numpy.where(there, better.matched, matched)
    return Found(lengths, matched)


@dataclass(frozen=True, slots=True)
class Suffixes:
    """The likeliest continuations at each place.

    match: [places] length of the matched suffix. probability: [places, LONGEST] of each continuation so far, -1 behind
    its end. matched: [places] how far the answer follows it.
    """

    match: Counts
    probability: NDArray[numpy.float64]
    matched: Counts

    def lengths(self, floor: float) -> Counts:
        """[places] tokens before the probability falls below the floor."""
        return leading(self.probability >= floor)

    def drafted(self, places: Places, settings: Settings, shortest: int, lengths: Counts) -> Drafted:
        """Steps with a genome's thresholds; `shortest` is the shortest match that drafts."""
        allowed = numpy.maximum(1, (settings.suffix_factor * self.match).astype(numpy.int16))
        allowed = numpy.where(self.match >= shortest, numpy.minimum(lengths, allowed), 0).astype(numpy.int16)
        return places.chains(allowed, self.matched, settings.draft_length)


def suffixes(traces: Sequence[Trace], places: Places, depth: int) -> Suffixes:
    """What the suffix automaton finds with contexts of at most `depth` tokens."""
    chains = numpy.full((places.count, LONGEST), -1, numpy.int32)
    probability = numpy.full((places.count, LONGEST), -1.0)
    match = numpy.zeros(places.count, numpy.int16)
    for place, drafter in _walk(traces, places, lambda: SuffixDrafter(depth, 1, 1.0, 0.0, LONGEST)):
        assert isinstance(drafter, SuffixDrafter)
        match[place] = drafter.matched
        for ahead, (token, chance) in enumerate(drafter.continuation(LONGEST)):
            chains[place, ahead], probability[place, ahead] = token, chance
    return Suffixes(match, probability, places.matches(chains))
