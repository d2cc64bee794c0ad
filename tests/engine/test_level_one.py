"""Level one: what it takes away and adds, and what it learns. That it never changes a token is in test_tree_loop."""

import math
import random

import pytest
from scored_drafter import ScoredDrafter

from engine.base import Settings
from engine.drafters.suffix import SuffixDrafter
from engine.verify.builders import Shape, best_first, chain
from engine.verify.candidates import LatticeCandidates, best_path
from engine.verify.level_one import LEVEL_ONE
from engine.verify.level_one.agreement import SuffixProlonging, SuffixPruning
from engine.verify.level_one.margin import AcceptanceEstimator, MarginPruning, margin_of
from engine.verify.level_one.second_pass import SecondPass
from engine.verify.speculation import Speculation
from engine.verify.tree import Tree


def test_the_estimator_begins_with_what_two_candidates_would_have():
    estimator = AcceptanceEstimator()
    assert estimator.probability(0.0) == 0.5
    assert estimator.probability(2.0) == pytest.approx(1 / (1 + math.exp(-2)))
    assert estimator.probability(-1e9) < 1e-9
    assert estimator.probability(1e9) > 1 - 1e-9


@pytest.mark.parametrize(("bias", "slope"), [(-1.0, 0.5), (1.0, 2.0), (0.0, 0.2)])
def test_the_estimator_finds_the_truth(bias, slope):
    rng = random.Random(1)
    estimator = AcceptanceEstimator()
    for _ in range(4000):
        margin = rng.gauss(0, 2)
        estimator.observe(margin, rng.random() < 1 / (1 + math.exp(-bias - slope * margin)))
    assert estimator.bias == pytest.approx(bias, abs=0.25)
    assert estimator.slope == pytest.approx(slope, abs=0.25)


class Listed:
    """Candidates given as {state: children}."""

    root = 0

    def __init__(self, rows):
        self.rows = rows

    def after(self, state):
        return self.rows.get(state, [])


ROWS = Listed({0: [(0.1, 7, 1), (2.5, 8, 2)], 1: [(0.4, 9, -1), (1.0, 5, -1), (3.0, 6, -1)], 2: [(0.0, 4, -1)]})


def test_the_margin_of_a_node():
    assert margin_of(ROWS, (0, 0)) == pytest.approx(2.4)
    assert margin_of(ROWS, (0, 1)) == pytest.approx(-2.4)
    assert margin_of(ROWS, (1, 2)) == pytest.approx(-2.6)
    assert margin_of(ROWS, (2, 0)) == 20, "without a rival nothing speaks against it"


def test_unlikely_nodes_are_pruned_and_lessons_are_taken():
    level = MarginPruning(0.2)
    tree = best_first(ROWS, Shape(budget=9, width=3, depth=2))
    assert list(tree.tokens) == [7, 9, 5, 8, 4, 6]
    # sigmoid(2.4) = .92; behind it sigmoid(.6) = .65 and sigmoid(-.6) = .35, which makes .59 and .32.
    assert list(level.prune(tree, ROWS).tokens) == [7, 9, 5]
    for _ in range(50):  # first choices win, however small their margin
        level.learn(tree, ROWS, [7, 9, 1])
    assert list(level.prune(tree, ROWS).tokens) == [7, 9]
    for _ in range(200):  # nothing wins any more
        level.learn(tree, ROWS, [3])
    assert len(level.prune(tree, ROWS)) == 0


def test_only_what_the_target_judged_is_learnt(monkeypatch):
    seen = []
    monkeypatch.setattr(AcceptanceEstimator, "observe", lambda self, margin, won: seen.append((round(margin, 1), won)))
    tree = best_first(ROWS, Shape(budget=9, width=3, depth=2))
    MarginPruning(0.0).learn(tree, ROWS, [7, 3])
    assert sorted(seen) == [(-2.6, False), (-2.4, False), (-0.6, False), (0.6, False), (2.4, True)]
    seen.clear()
    MarginPruning(0.0).learn(Tree.chain([7, 9]).merged(tree, 9), ROWS, [3])
    assert sorted(seen) == [(-2.4, False), (2.4, False)], "behind a rejected node nothing is known"


def agreeing(kind, text, match=2):
    level = kind(Settings(drafter="dflash", draft_length=12, agreement_match=match, suffix_depth=8))
    level.extend(text)
    return level


def test_nodes_that_the_text_contradicts_are_pruned():
    # After 1 2 came 3 and 5, after 1 2 3 came 4 only; nothing is known behind 4 4.
    level = agreeing(SuffixPruning, [1, 2, 3, 4, 0, 1, 2, 5, 6, 1, 2])
    tree = Tree([3, 9, 5, 4, 8, 9, 7], [-1, -1, -1, 0, 0, 2, 1])
    kept = level.prune(tree, ROWS)
    assert list(kept.tokens) == [3, 5, 4]
    assert list(kept.parents) == [-1, -1, 0]
    unheard = agreeing(SuffixPruning, [1, 2, 3, 4, 0, 1, 2, 5, 6, 1, 2], match=3)
    assert unheard.prune(tree, ROWS) is tree, "two tokens are no match of three"


def test_where_the_text_ends_nothing_is_contradicted():
    level = agreeing(SuffixPruning, [1, 2, 3, 1, 2])
    tree = Tree([3, 1, 2, 9], [-1, 0, 1, 2])
    assert list(level.prune(tree, ROWS).tokens) == [3, 1, 2, 9]


def lattice_of(seed, block=3):
    drafter = ScoredDrafter(vocab=9, block=block, seed=seed)
    return drafter, LatticeCandidates.of(drafter.lattice(block, 4))


def test_where_text_and_draft_agree_the_text_goes_on():
    drafter, lattice = lattice_of(5)
    path = [token for _, token, _ in best_path(lattice, 3)[1]]
    text = [100, 101, *path, 102, 103, 104, 100, 101]
    level = agreeing(SuffixProlonging, text)
    longer = chain(level.prolong(lattice, drafter, 6), Shape(budget=1, width=1, depth=6))
    assert list(longer.tokens) == [*path, 102, 103, 104]
    assert level.prolong(lattice, drafter, 3) is lattice, "no room behind the block"
    other = agreeing(SuffixProlonging, [100, 101, path[0], path[1], 99, 102, 100, 101])
    assert other.prolong(lattice, drafter, 6) is lattice, "they do not agree to the end"


def test_a_second_pass_drafts_behind_the_best_path():
    drafter, lattice = lattice_of(6)
    path = [token for _, token, _ in best_path(lattice, 3)[1]]
    second = LatticeCandidates.of(drafter.lattice(2, 16, path))
    longer = chain(SecondPass().prolong(lattice, drafter, 5), Shape(budget=1, width=1, depth=5))
    assert list(longer.tokens) == [*path, *(token for _, token, _ in best_path(second, 2)[1])]
    assert SecondPass().prolong(lattice, drafter, 3) is lattice


@pytest.mark.parametrize("name", LEVEL_ONE)
def test_level_one_serves_a_suffix_in_front_and_a_branch_beside(name):
    """What has no scores passes through every level one unharmed."""
    settings = Settings(
        drafter="dflash",
        draft_length=8,
        tree="best_first",
        tree_nodes=20,
        tree_branch="suffix",
        suffix_factor=8.0,
        min_probability=0.0,
        level_one=name,
        survival_floor=0.0,
    )
    speculation = Speculation(settings, ScoredDrafter(vocab=9, seed=3))
    speculation.extend([1, 2, 3, 4, 1, 2, 3])
    tree = speculation.propose(8)
    branch = SuffixDrafter.from_settings(settings, 1)
    branch.extend([1, 2, 3, 4, 1, 2, 3])
    copied = branch.propose(8)
    assert len(copied) > 3
    assert list(tree.tokens[: len(copied)]) == copied
    assert len(tree) == 20 or name == "suffix_prune"
    speculation.extend([4, 1])
    assert len(speculation.propose(8)) > 0
