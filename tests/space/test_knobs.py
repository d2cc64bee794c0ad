"""The knob space: whatever is drawn or completed is valid, and what is wrong is named."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.catalog import ar_genome, cpu_space, stock_genome
from space.errors import InputError
from space.knobs import ChoiceDomain, Condition, FloatDomain, IntDomain, Knob, KnobSpace

SPACE = cpu_space(cores=4)


def values_of(knob: Knob) -> st.SearchStrategy:
    domain = knob.domain
    if isinstance(domain, ChoiceDomain):
        return st.sampled_from(domain.options)
    if isinstance(domain, IntDomain):
        return st.integers(domain.low, domain.high)
    steps = round((domain.high - domain.low) / domain.step)
    return st.integers(0, steps).map(lambda i: domain.low + i * domain.step)


partials = st.fixed_dictionaries({}, optional={knob.name: values_of(knob) for knob in SPACE.knobs})


@given(partials)
def test_a_completed_set_is_valid_and_stays_as_it_is(partial):
    knobs = SPACE.complete(partial)
    SPACE.validate(knobs)
    assert SPACE.complete(knobs) == knobs


@given(st.integers())
def test_a_drawn_set_is_valid_and_depends_on_the_seed_alone(seed):
    knobs = SPACE.sample(random.Random(seed))
    SPACE.validate(knobs)
    assert SPACE.sample(random.Random(seed)) == knobs


@given(st.sampled_from(SPACE.knobs), st.data())
def test_text_of_a_value_reads_back(knob, data):
    value = knob.domain.canonical(data.draw(values_of(knob)))
    assert SPACE.parse(knob.name, str(value)) == value


def test_what_is_not_active_is_dropped():
    assert "ngram_max" not in SPACE.complete({"drafter": "suffix", "ngram_max": 3})
    assert "draft_length" not in SPACE.complete({"drafter": "none", "draft_length": 9})


def test_an_ordered_pair_is_repaired():
    knobs = SPACE.complete({"drafter": "ngram", "ngram_min": 7, "ngram_max": 2})
    assert (knobs["ngram_min"], knobs["ngram_max"]) == (2, 2)


def test_the_shipped_genomes_are_valid():
    for genome in (ar_genome(SPACE), stock_genome(SPACE)):
        SPACE.validate(genome.knobs)
    assert stock_genome(SPACE).knobs["draft_length"] == 6
    assert ar_genome(SPACE).knobs["drafter"] == "none"


def stock(**changes):
    return stock_genome(SPACE).knobs | changes


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (stock(draft_length=99), "knob draft_length = 99: allowed is a whole number from 1 to 32"),
        (stock(draft_length=True), "knob draft_length = True"),
        (stock(draft_length="6"), "knob draft_length = '6'"),
        (stock(linear_path="pact"), "knob linear_path = 'pact': allowed is one of plain, packed"),
        (stock(ngram_min=6), "knob ngram_min = 6 must not exceed ngram_max = 5"),
        (stock(suffix_depth=9), "knob suffix_depth = 9 has no effect unless drafter is suffix"),
        (stock(draft_lenght=9), "unknown knob 'draft_lenght'; did you mean 'draft_length'"),
        (stock(zzzz=9), r"unknown knob 'zzzz'\. Known: drafter"),
        ({"drafter": "none"}, "knob threads is missing: give a whole number from 1 to 4"),
    ],
)
def test_a_bad_set_is_refused_by_name(knobs, message):
    with pytest.raises(InputError, match=message):
        SPACE.validate(knobs)


@pytest.mark.parametrize("text", ["", "six", "1.5", "0", "99", "9" * 5000])
def test_bad_text_of_a_whole_number_is_refused(text):
    with pytest.raises(InputError, match="allowed is a whole number from 1 to 32"):
        SPACE.parse("draft_length", text)


@pytest.mark.parametrize("text", ["nan", "inf", "0.6", "-1", "x"])
def test_bad_text_of_a_number_is_refused(text):
    with pytest.raises(InputError, match=r"allowed is a number from 0\.5 to 8\.0 in steps of 0\.5"):
        SPACE.parse("suffix_factor", text)


def test_a_declaration_that_contradicts_itself_is_refused():
    good = Knob(name="a", domain=IntDomain(low=1, high=3), default=2, gap="host", help="")
    bad_default = Knob(name="b", domain=FloatDomain(low=0, high=1, step=0.5), default=0.3, gap="host", help="")
    child = Knob(
        name="c",
        domain=IntDomain(low=1, high=3),
        default=1,
        gap="host",
        help="",
        when=Condition(name="a", values=(1,)),
    )
    with pytest.raises(InputError, match=r"knob b: default 0\.3 is not a number"):
        KnobSpace(1, (bad_default,))
    with pytest.raises(InputError, match="knob a is declared twice"):
        KnobSpace(1, (good, good))
    with pytest.raises(InputError, match="knob c depends on a, which must stand before it"):
        KnobSpace(1, (child, good))


def test_the_space_as_json_shows_conditions_and_scale():
    assert SPACE.to_json()["knobs"]["draft_length"] == (
        "a whole number from 1 to 32 (log), default 6, when drafter is ngram or suffix"
    )
    assert SPACE.to_json()["orders"] == ["ngram_min <= ngram_max"]
