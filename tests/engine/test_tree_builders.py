"""Trees and their builders: shapes within their limits, and the best-first tree against brute force."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scored_drafter import ScoredDrafter

from engine.base import Lattice
from engine.verify.builders import BUILDERS, Shape, best_first, ceiling, chain, fixed
from engine.verify.candidates import LatticeCandidates, Prolonged, best_path
from engine.verify.tree import EMPTY, Tree, greedy_walk
from space.errors import EngineError


def candidates_of(seed, block=3, k=4, pairs=True):
    drafter = ScoredDrafter(vocab=k + 2, block=block, pairs=pairs, seed=seed)
    lattice = drafter.lattice(block, k)
    return lattice, LatticeCandidates.of(lattice)


def every_path(lattice):
    """All paths of a lattice with their costs, in plain loops: {tokens: cost}."""
    k, pairs = lattice.ids.shape[1], lattice.edges.shape[1] > 1
    found = {}
    for depth in range(1, len(lattice.ids) + 1):
        for ranks in itertools.product(range(k), repeat=depth):
            before, cost = 0, 0.0
            for j, rank in enumerate(ranks):
                cost -= float(lattice.edges[j, before if pairs else 0, rank])
                before = rank
            found[tuple(int(lattice.ids[j, rank]) for j, rank in enumerate(ranks))] = cost
    return found


def paths_of(tree):
    paths = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 64), st.integers(1, 3), st.booleans())
def test_best_first_takes_the_likeliest_paths(seed, budget, depth, pairs):
    lattice, candidates = candidates_of(seed, pairs=pairs)
    tree = best_first(candidates, Shape(budget=budget, width=4, depth=depth))
    costs = {path: cost for path, cost in every_path(lattice).items() if len(path) <= depth}
    taken = paths_of(tree)
    assert len(set(taken)) == len(taken) == min(budget, len(costs))
    best = sorted(costs.values())[: len(taken)]
    assert [costs[path] for path in taken] == pytest.approx(best), "in order of probability"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 64), st.integers(1, 4), st.integers(1, 3), st.floats(0, 0.5))
def test_best_first_within_its_width_and_floor(seed, budget, width, depth, floor):
    lattice, candidates = candidates_of(seed)
    tree = best_first(candidates, Shape(budget=budget, width=width, depth=depth, ceiling=ceiling(floor)))
    costs = every_path(lattice)
    assert all(math.exp(-costs[path]) >= floor * (1 - 1e-9) for path in paths_of(tree))
    for parent in range(-1, len(tree)):
        assert sum(above == parent for above in tree.parents) <= width
    free = best_first(candidates, Shape(budget=1000, width=width, depth=depth))
    inside = [path for path in paths_of(free) if costs[path] <= ceiling(floor)]
    assert paths_of(tree) == inside[:budget], "a budget and a floor cut the same order short"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_a_fixed_tree_is_a_beam(seed, budget, width, depth, pairs):
    lattice, candidates = candidates_of(seed, pairs=pairs)
    tree = fixed(candidates, Shape(budget=budget, width=width, depth=depth))
    costs, taken, beam = every_path(lattice), paths_of(tree), [()]
    assert len(tree) == min(budget, width * depth)
    for level in range(1, depth + 1):
        options = [p for p in costs if len(p) == level and p[:-1] in beam]
        # At most `width` children a node; with a beam of that width more could never be taken.
        expected = sorted(costs[p] for p in options)[:width]
        beam = [p for p in taken if len(p) == level]
        assert [costs[p] for p in beam] == pytest.approx(expected[: len(beam)])


def test_a_chain_is_the_best_child_of_the_best_child():
    lattice, candidates = candidates_of(3)
    tree = chain(candidates, Shape(budget=1, width=1, depth=3))
    assert list(tree.tokens) == [token for _, token, _ in best_path(candidates, 3)[1]]
    assert tree.is_chain
    assert len(tree) == 3, "a chain has no budget but its depth"
    costs = every_path(lattice)
    for end in (1, 2, 3):
        path = tuple(tree.tokens[:end])
        assert costs[path] == min(costs[p] for p in costs if len(p) == end and p[:-1] == path[:-1])


@pytest.mark.parametrize("name", BUILDERS)
def test_nothing_to_build_from(name):
    nothing = LatticeCandidates.of(Lattice(ids=torch.zeros(0, 4, dtype=torch.int64), edges=torch.zeros(0, 4, 4)))
    shape = Shape(budget=8, width=2, depth=3)
    assert len(BUILDERS[name](nothing, shape)) == 0
    assert len(BUILDERS[name](candidates_of(0)[1], Shape(budget=8, width=2, depth=0))) == 0


@pytest.mark.parametrize("name", ["fixed", "best_first"])
def test_impossible_candidates_are_no_nodes(name):
    edges = torch.full((2, 3, 3), -torch.inf)
    edges[0, 0, 1] = edges[1, 1, 2] = -0.5
    lattice = Lattice(ids=torch.tensor([[10, 11, 12], [20, 21, 22]]), edges=edges)
    tree = BUILDERS[name](LatticeCandidates.of(lattice), Shape(budget=9, width=3, depth=2))
    assert paths_of(tree) == [(11,), (11, 22)]


def test_prolonged_continues_the_best_path_only():
    _, head = candidates_of(1, block=2, k=3)
    _, tail = candidates_of(2, block=2, k=3)
    both = Prolonged(head, tail)
    tree = best_first(both, Shape(budget=10_000, width=3, depth=9))
    best = tuple(token for _, token, _ in best_path(head, 2)[1])
    assert best_path(both, 9)[1][:2] == [
        (cost, token, behind + head.size if behind >= 0 else 2 * head.size)
        for cost, token, behind in best_path(head, 2)[1]
    ]
    assert [token for _, token, _ in best_path(both, 9)[1][2:]] == [token for _, token, _ in best_path(tail, 2)[1]]
    long = [path for path in paths_of(tree) if len(path) > 2]
    assert {path[:2] for path in long} == {best}
    assert sorted(path[2:] for path in long) == sorted(paths_of(best_first(tail, Shape(budget=999, width=3, depth=9))))
    short = sorted(path for path in paths_of(tree) if len(path) <= 2)
    assert short == sorted(paths_of(best_first(head, Shape(budget=999, width=3, depth=9))))


@st.composite
def trees(draw, most=12):
    size = draw(st.integers(0, most))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    return Tree([draw(st.integers(0, 3)) for _ in range(size)], parents)


@given(trees())
def test_what_a_row_sees_and_where_it_stands(tree):
    visible, positions = tree.visible().tolist(), tree.positions(100).tolist()
    for row in range(len(tree) + 1):
        ancestors, node = {row}, row - 1
        while node >= 0:
            node = tree.parents[node]
            ancestors.add(node + 1)
        assert {index for index, sees in enumerate(visible[row]) if sees} == ancestors
        assert positions[row] == 100 + len(ancestors) - 1
    assert tree.is_chain == (list(tree.parents) == list(range(-1, len(tree) - 1)))


@given(trees(), st.lists(st.integers(0, 3), min_size=13, max_size=13))
def test_the_walk_follows_the_targets_choices_as_far_as_there_are_nodes(tree, choices):
    path = greedy_walk(tree, choices)
    at = -1
    for node in path:
        assert tree.parents[node] == at
        assert tree.tokens[node] == choices[at + 1]
        at = node
    assert not any(p == at and t == choices[at + 1] for p, t in zip(tree.parents, tree.tokens, strict=True))


@given(trees(), st.data())
def test_what_is_kept_keeps_its_ancestors(tree, data):
    keep = data.draw(st.lists(st.booleans(), min_size=len(tree), max_size=len(tree)))
    expected = []
    for node, path in enumerate(paths_of(tree)):
        at, whole = node, True
        while at >= 0:
            whole, at = whole and keep[at], tree.parents[at]
        expected += [path] if whole else []
    assert paths_of(tree.kept(keep)) == expected


@given(trees(), trees(), st.integers(0, 30))
def test_merging_shares_common_beginnings(first, second, budget):
    assume(len(set(paths_of(first))) == len(first))  # no builder makes twins
    merged = first.merged(second, budget)
    paths = paths_of(merged)
    assert paths[: len(first)] == paths_of(first)
    assert len(merged) <= max(budget, len(first))
    assert set(paths) <= {*paths_of(first), *paths_of(second)}
    fresh = paths[len(first) :]
    assert len(set(fresh)) == len(fresh)
    assert not set(fresh) & set(paths_of(first))
    if budget >= len(first) + len(second):
        assert set(paths) == {*paths_of(first), *paths_of(second)}
    assert all(parent < node for node, parent in enumerate(merged.parents))


def test_a_node_before_its_parent_is_refused():
    with pytest.raises(EngineError, match="node 1 of a draft tree has parent 1; it must be from -1 to 0"):
        Tree([5, 6], [-1, 1])
    assert len(EMPTY) == 0
    assert EMPTY.is_chain
