"""Drafters against slow searches that were written without looking at them."""

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base import Settings
from engine.drafters import make_drafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from space.errors import EngineError

texts = st.integers(1, 4).flatmap(lambda vocab: st.lists(st.integers(0, vocab), max_size=60))
limits = st.integers(0, 12)


def cut(text, marks):
    """The text in pieces, as a loop would commit it."""
    places = sorted({mark % (len(text) + 1) for mark in marks} | {0, len(text)})
    return [text[a:b] for a, b in zip(places, places[1:], strict=False)]


def naive_ngram(text, longest, shortest, limit):
    for n in range(longest, shortest - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if n <= len(text) and text[start : start + n] == text[len(text) - n :]:
                return text[start + n : start + n + limit]
    return []


@settings(deadline=None)
@given(texts, st.integers(1, 6), st.integers(0, 5), limits, st.lists(st.integers(0, 60), max_size=6))
def test_ngram_finds_the_latest_occurrence_of_the_longest_ngram(text, shortest, more, limit, marks):
    drafter = NgramDrafter(longest=shortest + more, shortest=shortest)
    for piece in cut(text, marks):
        drafter.extend(piece)
    draft = drafter.propose(limit)
    assert draft == naive_ngram(text, shortest + more, shortest, limit)
    assert len(draft) <= limit


def test_ngram_prefers_longer_then_later():
    drafter = NgramDrafter(longest=2, shortest=1)
    drafter.extend([1, 2, 7, 9, 2, 8, 1, 2])
    assert drafter.propose(3) == [7, 9, 2]  # (1, 2) stands earlier than the later (2,)
    drafter = NgramDrafter(longest=1, shortest=1)
    drafter.extend([1, 2, 7, 9, 2, 8, 1, 2])
    assert drafter.propose(3) == [8, 1, 2]


def test_ngram_drafts_nothing_below_its_shortest():
    drafter = NgramDrafter(longest=5, shortest=3)
    drafter.extend([4, 5, 9, 4, 5])
    assert drafter.propose(8) == []


def occurrences(text, piece):
    """Ends of every occurrence."""
    return [end for end in range(len(piece), len(text) + 1) if text[end - len(piece) : end] == piece]


def naive_suffix(text, depth, min_match, factor, floor, draft_length, limit):
    matched = 0
    for n in range(1, min(depth, len(text)) + 1):
        if len(occurrences(text, text[len(text) - n :])) > 1:
            matched = n
    if matched < min_match:
        return []
    context, draft, probability = text[len(text) - matched :], [], 1.0
    while len(draft) < min(limit, draft_length, max(1, int(factor * matched))):
        following = Counter()
        latest = {}
        for end in occurrences(text, context + draft):
            if end < len(text):
                following[text[end]] += 1
                latest[text[end]] = end
        if not following:
            break
        token = max(following, key=lambda t: (following[t], latest[t]))
        probability *= following[token] / sum(following.values())
        if probability < floor:
            break
        draft.append(token)
    return draft


@settings(deadline=None)
@given(
    text=texts,
    depth=st.integers(1, 12),
    min_match=st.integers(1, 4),
    factor=st.sampled_from([0.5, 1.0, 1.5, 4.0]),
    floor=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]),
    draft_length=st.integers(1, 10),
    limit=limits,
    marks=st.lists(st.integers(0, 60), max_size=6),
)
def test_suffix_drafts_the_most_frequent_continuation(
    text, depth, min_match, factor, floor, draft_length, limit, marks
):
    drafter = SuffixDrafter(depth, min_match, factor, floor, draft_length)
    given_so_far = []
    for piece in cut(text, marks):
        drafter.extend(piece)
        given_so_far += piece
        expected = naive_suffix(given_so_far, depth, min_match, factor, floor, draft_length, limit)
        assert drafter.propose(limit) == expected


def suffix(text, **changed):
    about = {"depth": 8, "min_match": 1, "factor": 8.0, "min_probability": 0.0, "draft_length": 32} | changed
    drafter = SuffixDrafter(**about)
    drafter.extend(text)
    return drafter


def test_suffix_takes_the_most_frequent_and_of_equals_the_latest():
    assert suffix([1, 5, 1, 6, 1]).propose(1) == [6]
    assert suffix([1, 5, 1, 5, 1, 6, 1], depth=1).propose(1) == [5]
    assert suffix([1, 5, 1, 5, 1, 6, 1, 6, 1], depth=1).propose(1) == [6]


def test_suffix_factor_floor_and_match_end_a_draft():
    text = [1, 2, 3, 4, 5, 6, 9, 1, 2]
    assert suffix(text).propose(32) == [3, 4, 5, 6, 9, 1, 2]
    assert suffix(text, factor=1.0).propose(32) == [3, 4]
    assert suffix(text, factor=0.5).propose(32) == [3]
    assert suffix(text, draft_length=3).propose(32) == [3, 4, 5]
    assert suffix(text, min_match=3).propose(32) == []
    branching = [1, 2, 1, 3, 1]
    assert suffix(branching, min_probability=0.5).propose(1) == [3]
    assert suffix(branching, min_probability=0.51).propose(1) == []


@pytest.mark.parametrize("text", [[7] * 4000, [7, 8] * 2000, list(range(4000)), [n * n % 13 for n in range(4000)]])
def test_suffix_takes_long_texts_in_linear_time(text):
    """4,000 tokens and 200 steps. Counting every suffix of the constant text would be eight million visits."""
    drafter = SuffixDrafter(24, 1, 1.0, 0.1, 8)
    started = time.process_time()
    drafter.extend(text)
    for token in text[:200]:
        drafter.extend([token])
        drafter.propose(8)
    assert time.process_time() - started < 1.0


def test_suffix_work_grows_with_the_text_not_with_its_square():
    class Counted(list):
        visits = 0

        def __getitem__(self, index):
            Counted.visits += 1
            return super().__getitem__(index)

    def visits(length):
        drafter = SuffixDrafter(8, 1, 1.0, 0.1, 4)
        drafter._states = Counted(drafter._states)
        Counted.visits = 0
        drafter.extend([7] * length)
        drafter.propose(4)
        return Counted.visits

    assert visits(2000) < 2.2 * visits(1000)


@settings(deadline=None)
@given(texts, limits)
def test_a_draft_never_exceeds_its_limit(text, limit):
    for name in ("ngram", "suffix"):
        drafter = make_drafter(Settings(drafter=name, draft_length=6, ngram_min=1, suffix_factor=8.0))
        drafter.extend(text)
        assert len(drafter.propose(limit)) <= limit


def test_the_registry():
    assert make_drafter(Settings()) is None
    assert isinstance(make_drafter(Settings(drafter="ngram")), NgramDrafter)
    assert isinstance(make_drafter(Settings(drafter="suffix")), SuffixDrafter)
    with pytest.raises(
        EngineError, match=r"drafter 'sufix' is not there; did you mean 'suffix'\? Known: none, ngram, suffix"
    ):
        make_drafter(Settings(drafter="sufix"))
