import math
import random

import archive_records as make
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archive.base import Descriptor
from archive.elites import GAPS, REGIME_EDGES, WIDTH_EDGES, Cell, axes, beats, cell_of, elites, grid_stats
from archive.store import Archive
from space.errors import ArchiveError
from space.outcome import Outcome

HOST = Descriptor(regime=1, gap="host", width=1.2)


def complexity(genome):
    return genome.complexity(make.SPACE)


def pair(number, ratio, spread=0.01, length=6, descriptor=HOST, **changes):
    evaluation = make.ok(number, descriptor=descriptor, score=make.score(ratio, spread), samples=(), **changes)
    return make.attempt(number, genome=make.genome(length)), evaluation


def chosen(*history):
    [elite] = elites(history, complexity).values()
    return elite.attempt.number


@pytest.mark.parametrize(
    ("descriptor", "cell"),
    [
        (Descriptor(regime=1, gap="host", width=0.0), (0, "host", 0)),
        (Descriptor(regime=3, gap="waste", width=0.4999), (1, "waste", 0)),
        (Descriptor(regime=4, gap="draft", width=0.5), (2, "draft", 1)),
        (Descriptor(regime=511, gap="weights", width=6.0), (8, "weights", 7)),
        (Descriptor(regime=8, gap="acceptance", width=1e9), (3, "acceptance", 7)),
    ],
)
def test_a_bin_includes_its_lower_edge(descriptor, cell):
    assert cell_of(descriptor) == Cell(regime=cell[0], gap=cell[1], width=cell[2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regime": 512}, "regime = 512 lies outside the grid .*1 up to, not including, 512"),
        ({"width": -0.1}, "width = -0.1 lies outside the grid .*0.0 up to, not including, inf"),
        ({"gap": "wast"}, "gap = 'wast' is not in the grid .*did you mean 'waste'.\nKnown: acceptance, waste"),
    ],
)
def test_outside_the_grid_is_refused_not_clipped(changes, message):
    with pytest.raises(ArchiveError, match=message):
        cell_of(Descriptor(**{"regime": 1, "gap": "host", "width": 1.0, **changes}))


def test_a_cell_in_words():
    assert cell_of(HOST).describe() == "1 request, host, 1-1.5 nodes per token"
    far = cell_of(Descriptor(regime=70, gap="waste", width=8))
    assert far.describe() == "64-127 requests, waste, 6 or more nodes per token"


def test_the_grid_as_json():
    assert axes() == {
        "regime": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        "gap": ["acceptance", "waste", "draft", "weights", "host"],
        "width": [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, "inf"],
    }


def test_a_challenger_must_win_beyond_both_spreads():
    assert beats(make.score(2.00, 0.01), make.score(1.90, 0.01))
    assert not beats(make.score(2.00, 0.01), make.score(1.97, 0.01))
    assert not beats(make.score(2.00, 0.10), make.score(1.90, 0.01))
    assert not beats(make.score(2.00, 0.01), make.score(1.90, 0.10))
    assert not beats(make.score(2.0, 0.0), make.score(2.0, 0.0))


def test_a_tie_goes_to_the_simpler_genome_then_to_the_earlier():
    assert chosen(pair(1, 2.00, length=9), pair(2, 1.99)) == 2
    assert chosen(pair(1, 2.00), pair(2, 2.01, length=9)) == 1
    assert chosen(pair(1, 2.00, length=8), pair(2, 2.01, length=9)) == 1
    assert chosen(pair(1, 1.80), pair(2, 2.00, length=9)) == 2


def test_a_row_of_ties_does_not_walk_away_from_the_best():
    """Each ties with the one before it and is simpler, but the last is far from the first."""
    a = make.attempt(1, genome=make.genome(9, threads=1, prefill_chunk=64)), pair(1, 2.00, 0.03)[1]
    b = make.attempt(2, genome=make.genome(9, threads=1)), pair(2, 1.90, 0.03)[1]
    c = make.attempt(3, genome=make.genome(9)), pair(3, 1.80, 0.03)[1]
    assert not beats(a[1].score, b[1].score)
    assert not beats(b[1].score, c[1].score)
    assert beats(a[1].score, c[1].score)
    assert chosen(a, b, c) == 2


def test_only_ok_evaluations_of_the_search_compete():
    history = [
        pair(1, 1.5),
        pair(2, 3.0, stage="confirm"),
        (make.attempt(3), make.failed(3)),
        (make.attempt(4), make.failed(4, outcome=Outcome.UNSTABLE)),
    ]
    assert chosen(*history) == 1
    assert elites(history[1:], complexity) == {}


def test_an_ok_evaluation_that_cannot_be_placed_is_an_error():
    with pytest.raises(ArchiveError, match="run-a/1 is ok without a score and a descriptor"):
        elites([(make.attempt(1), make.ok(1, descriptor=None))], complexity)


_pairs = st.lists(
    st.tuples(
        st.sampled_from([1.0, 1.01, 1.02, 1.05, 1.1, 1.5]),
        st.sampled_from([0.0, 0.01, 0.05]),
        st.integers(1, 8),
        st.builds(Descriptor, regime=st.integers(1, 3), gap=st.sampled_from(GAPS[:2]), width=st.floats(0, 1.4)),
        st.booleans(),
    ),
    max_size=25,
)


def history_of(drawn):
    return [
        pair(i, ratio, spread, length, where) if good else (make.attempt(i), make.failed(i))
        for i, (ratio, spread, length, where, good) in enumerate(drawn, 1)
    ]


@settings(deadline=None, max_examples=100)
@given(drawn=_pairs, seed=st.integers())
def test_elites_do_not_depend_on_the_order_of_records(drawn, seed):
    history = history_of(drawn)
    view = elites(history, complexity)
    shuffled = list(history)
    random.Random(seed).shuffle(shuffled)
    again = elites(shuffled, complexity)
    assert view == again
    assert list(view) == list(again) == sorted(view)


@settings(deadline=None, max_examples=100)
@given(drawn=_pairs)
def test_no_contender_beats_its_elite_and_each_elite_lies_in_its_cell(drawn):
    history = history_of(drawn)
    view = elites(history, complexity)
    good = [(a, e) for a, e in history if e.outcome is Outcome.OK]
    assert set(view) == {cell_of(e.descriptor) for _, e in good}
    for cell, elite in view.items():
        assert cell_of(elite.evaluation.descriptor) == cell
        rivals = [(a, e) for a, e in good if cell_of(e.descriptor) == cell]
        fastest = max(rivals, key=lambda rival: (rival[1].score.ratio_ar, -rival[1].score.spread))
        assert not beats(fastest[1].score, elite.score)
        for attempt, evaluation in rivals:
            if not beats(fastest[1].score, evaluation.score):
                assert complexity(elite.attempt.genome) <= complexity(attempt.genome)


@settings(deadline=None, max_examples=15)
@given(drawn=_pairs)
def test_elites_can_be_rebuilt_from_the_file(tmp_path_factory, drawn):
    history = history_of(drawn)
    path = tmp_path_factory.mktemp("elites") / "archive.sqlite"
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        for attempt, evaluation in history:
            make.record(archive, attempt, evaluation)
    with Archive.open(path, read_only=True) as archive:
        assert elites(archive.history("run-a"), complexity) == elites(history, complexity)


def test_statistics_count_the_cells_of_the_regimes_that_were_asked_for():
    view = elites(
        [
            pair(1, 1.5),
            pair(2, 2.5, descriptor=Descriptor(regime=1, gap="waste", width=0)),
            pair(3, 9.0, descriptor=Descriptor(regime=8, gap="waste", width=0)),
        ],
        complexity,
    )
    stats = grid_stats(view, regimes=(1,))
    assert (stats.num_elites, stats.cells, stats.coverage) == (2, 40, 2 / 40)
    assert (stats.qd_score, stats.norm_qd_score, stats.obj_max, stats.obj_mean) == (4.0, 0.1, 2.5, 2.0)
    assert grid_stats(view, regimes=(1, 8)).cells == 80
    assert grid_stats(view, regimes=(8,)).obj_max == 9.0
    empty = grid_stats({}, regimes=(1,))
    assert (empty.num_elites, empty.coverage, empty.qd_score, empty.obj_max) == (0, 0, 0, None)
    with pytest.raises(ArchiveError, match="regime = 0"):
        grid_stats(view, regimes=(0,))


def test_edges_rise():
    for edges in (REGIME_EDGES, WIDTH_EDGES):
        assert all(low < high for low, high in zip(edges, edges[1:], strict=False))
    assert WIDTH_EDGES[-1] == math.inf
