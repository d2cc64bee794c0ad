"""Genomes and canonical JSON: equal content has equal bytes, different content has different ids."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.canonical import canonical_json, content_hash, differing_keys
from space.catalog import cpu_space
from space.genome import Genome

SPACE = cpu_space(cores=2)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
documents = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(documents)
def test_canonical_json_survives_a_round_trip(document):
    text = canonical_json(document)
    assert text.isascii()
    assert canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text(), scalars))
def test_the_order_of_keys_does_not_matter(document):
    assert content_hash(dict(reversed(document.items()))) == content_hash(document)


@given(documents, documents)
def test_the_differing_keys_are_empty_exactly_when_the_content_is_equal(old, new):
    assert (not differing_keys(old, new)) == (canonical_json(old) == canonical_json(new))


def test_differing_keys_name_path_and_values():
    old = {"workload": {"max_tokens": 64, "prompts": "shipped"}, "note": None}
    new = {"workload": {"max_tokens": 128, "prompts": "shipped"}}
    assert differing_keys(old, new) == ["note: null -> (absent)", "workload.max_tokens: 64 -> 128"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"ratio": value})


@given(st.integers(1, 32), st.integers(1, 32))
def test_the_id_changes_exactly_with_the_content(first, second):
    a, b = (Genome.complete(SPACE, {"drafter": "ngram", "draft_length": n}) for n in (first, second))
    assert (a.id == b.id) == (first == second)
    assert (a.json == b.json) == (first == second)


def test_what_decodes_alike_has_one_id():
    whole, real = (Genome.complete(SPACE, {"drafter": "suffix", "suffix_factor": n}) for n in (2, 2.0))
    assert whole.id == real.id
    sum_, literal = (Genome.complete(SPACE, {"drafter": "suffix", "min_probability": n}) for n in (0.1 + 0.2, 0.3))
    assert sum_.id == literal.id
    a, b = (Genome.complete(SPACE, {"drafter": "none", "draft_length": n}) for n in (3, 4))
    assert a.id == b.id


def test_an_id_is_the_same_on_every_machine():
    assert Genome.of({"b": 2, "a": True}).json == '{"knobs":{"a":true,"b":2}}'
    assert Genome.of({"b": 2, "a": True}).id == "2a6247eddca7"


def test_complexity_counts_the_knobs_that_left_their_default():
    assert Genome.complete(SPACE, {}).complexity(SPACE) == 0
    assert Genome.complete(SPACE, {"draft_length": 9, "threads": 1}).complexity(SPACE) == 2
