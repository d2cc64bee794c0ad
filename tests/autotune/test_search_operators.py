import random
import time
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import SPACE, Landscape, cell_of, proposer, random_history, search, spaces, speed, trial

from autotune.domains import at, every_genome, levels, neighbour, position
from autotune.history import Tried
from autotune.operators import REGISTRY, all_operators
from autotune.operators.evolve import Crossover, Mutation
from autotune.operators.seed import Seed, seeds
from autotune.operators.tpe import Tpe
from autotune.operators.union import Union
from autotune.parents import elites, fruitless, pick_parent
from autotune.priors import BOOST, knob_weights
from space.catalog import stock_genome
from space.genome import Genome
from space.knobs import ChoiceDomain, FloatDomain, IntDomain, Knob, KnobSpace
from space.outcome import Outcome

DOMAINS = [
    IntDomain(low=1, high=32, log=True),
    IntDomain(low=3, high=3, log=True),
    IntDomain(low=-2, high=9),
    FloatDomain(low=0.0, high=0.9, step=0.05),
    ChoiceDomain(options=(64, 128, 256)),
]


@pytest.mark.parametrize("domain", DOMAINS)
def test_positions_go_there_and_back(domain):
    for value in levels(domain):
        assert domain.contains(value)
        assert at(domain, position(domain, value)) == value
    assert (at(domain, -1.0), at(domain, 2.0)) == (levels(domain)[0], levels(domain)[-1])


def test_neighbours_stay_inside_and_differ():
    domain = IntDomain(low=1, high=3)
    assert [neighbour(domain, v, up=True) for v in (1, 2, 3)] == [2, 3, 2]
    assert [neighbour(domain, v, up=False) for v in (1, 2, 3)] == [2, 1, 2]


@settings(max_examples=30, deadline=None)
@given(space=spaces())
def test_the_walk_has_every_valid_genome_once(space):
    walked = [genome.id for genome in every_genome(space)]
    rng = random.Random(0)
    drawn = {Genome.of(space.sample(rng)).id for _ in range(200)}
    assert len(walked) == len(set(walked))
    assert drawn <= set(walked)
    for genome in every_genome(space):
        space.validate(genome.knobs)


def test_stock_is_the_first_seed_and_no_seed_is_plain_ar():
    genomes = seeds(SPACE)
    assert genomes[0] == stock_genome(SPACE)
    assert len(genomes) == 3  # stock, the other drafter, the other weight layout
    assert {g.knobs["drafter"] for g in genomes} == {"ngram", "suffix"}
    assert any(g.knobs["linear_path"] == "packed" for g in genomes)


def test_a_failed_seed_is_not_proposed_again():
    history = [trial(1, outcome=Outcome.TIMEOUT)]
    proposal = Seed().propose(SPACE, history, random.Random(0))
    assert proposal is not None
    assert proposal.genome not in Tried.of(history)


@settings(max_examples=40, deadline=None)
@given(space=spaces(), seed=st.integers(0, 2**32), count=st.integers(0, 12), name=st.sampled_from(sorted(REGISTRY)))
def test_every_operator_is_pure_and_valid_in_any_space(space, seed, count, name):
    every = list(every_genome(space))
    rng = random.Random(seed)
    history = [
        trial(n, rng.uniform(1, 2), space=space, knobs=rng.choice(every).knobs, operator=name)
        for n in range(1, count + 1)
    ]
    operator = REGISTRY[name](cell_of)
    first, second = (operator.propose(space, history, random.Random(seed)) for _ in range(2))
    assert first == second
    if first is not None:
        space.validate(first.genome.knobs)
        assert first.operator == name
        known = {t.attempt.genome.id for t in history}
        assert set(first.parents) <= known


@settings(max_examples=15, deadline=None)
@given(space=spaces(), seed=st.integers(0, 1000))
def test_a_search_of_any_space_has_no_duplicate_and_ends(space, seed):
    landscape = Landscape(lambda knobs: 1.0 + len(str(knobs)) % 7 / 10)
    result = search(landscape=landscape, space=space, seed=seed, evals=25)
    tried = [t.attempt.genome.id for t in result.trials if t.evaluation.stage == "search"]
    assert len(tried) == len(set(tried)) == min(25, sum(1 for _ in zip(range(25), every_genome(space), strict=False)))


def test_operators_without_material_propose_nothing():
    rng = random.Random(0)
    failed = [trial(1, outcome=Outcome.RUNTIME)]
    one = [trial(1)]
    assert Mutation(cell_of).propose(SPACE, failed, rng) is None
    assert Crossover(cell_of).propose(SPACE, one, rng) is None
    assert Tpe().propose(SPACE, one, rng) is None


def test_mutation_changes_few_knobs_and_names_its_parent():
    history = random_history(SPACE, 1)
    parent = history[0].attempt.genome
    for seed in range(30):
        child = Mutation(cell_of).propose(SPACE, history, random.Random(seed))
        assert child.parents == (parent.id,)
        assert child.genome.id != parent.id


def test_switching_the_drafter_takes_over_the_best_settings_known_for_it():
    suffix = {"drafter": "suffix", "draft_length": 13, "suffix_depth": 41, "min_probability": 0.35}
    history = [trial(1, 2.0), trial(2, 1.0, knobs=suffix)]
    children = [Mutation(cell_of).propose(SPACE, history, random.Random(seed)).genome.knobs for seed in range(200)]
    switched = [c for c in children if c["drafter"] == "suffix" and "suffix_depth" in c]
    assert any(c["suffix_depth"] == 41 and c["min_probability"] == 0.35 for c in switched)


def test_a_child_has_each_value_from_one_of_its_parents():
    space = KnobSpace(
        version=1,
        knobs=tuple(
            Knob(name=n, domain=IntDomain(low=0, high=99), default=0, gap="host", help="") for n in ("a", "b", "c", "d")
        ),
    )
    low, high = (dict.fromkeys(("a", "b", "c", "d"), v) for v in (10, 20))
    history = [trial(1, 1.0, space=space, knobs=low), trial(2, 1.1, space=space, knobs=high)]
    mixed = 0
    for seed in range(40):
        child = Crossover(cell_of).propose(space, history, random.Random(seed))
        values = set(child.genome.knobs.values())
        mixed += values == {10, 20}
        assert len(child.parents) == 2
        assert values <= {10, 20} or not values >= {10, 20}  # only a copy of one parent is mutated
    assert mixed > 10


def test_knobs_of_the_dominating_gap_change_more_often_and_the_others_still_do():
    weights = knob_weights(SPACE, [trial(1, 1.5, gap="waste"), trial(2, 1.2, gap="host")])
    assert weights["draft_length"] == BOOST
    assert weights["threads"] == 1.0
    assert set(knob_weights(SPACE, []).values()) == {1.0}

    def changed(gap):
        history = [trial(1, 1.5, gap=gap)]
        before = history[0].attempt.genome.knobs
        children = [Mutation(cell_of).propose(SPACE, history, random.Random(s)).genome.knobs for s in range(300)]
        return sum(child.get("linear_path") != before["linear_path"] for child in children)

    assert changed("weights") > 1.5 * changed("host") > 0


def test_tpe_avoids_what_failed_and_prefers_what_is_fast():
    history = random_history(SPACE, 60)
    history = [
        replace(t, evaluation=replace(t.evaluation, outcome=Outcome.MISMATCH, score=None, descriptor=None))
        if t.attempt.genome.knobs["prefill_chunk"] <= 128
        else t
        for t in history
    ]
    drawn = [Tpe().propose(SPACE, history, random.Random(seed)).genome.knobs for seed in range(30)]
    assert sum(k["prefill_chunk"] <= 128 for k in drawn) <= 6  # a fair coin gives 15
    assert fmean(map(speed, drawn)) > 1.15 * fmean(speed(t.attempt.genome.knobs) for t in history)


def test_tpe_copes_with_values_off_the_grid_and_answers_fast():
    history = [trial(0, 1.2, knobs={"drafter": "suffix", "min_probability": 0.123}), *random_history(SPACE, 199)]
    Tpe().propose(SPACE, history, random.Random(0))  # the first call imports parts of Optuna
    took = []
    for seed in range(5):
        start = time.process_time()
        assert Tpe().propose(SPACE, history, random.Random(seed)) is not None
        took.append(time.process_time() - start)
    assert min(took) < 0.2  # 0.03 s on an idle machine


def test_tpe_writes_nothing(capfd):
    Tpe().propose(SPACE, random_history(SPACE, 20), random.Random(0))
    assert capfd.readouterr() == ("", "")


def test_parents_come_from_elites_and_barren_cells_less_often():
    history = [
        trial(1, 1.4, gap="host", knobs={"threads": 1}),
        trial(2, 1.5, gap="host", knobs={"threads": 2}),
        trial(3, 1.5, gap="weights", knobs={"threads": 3}),
    ]
    assert {t.attempt.number for t in elites(history, cell_of).values()} == {2, 3}
    rng = random.Random(0)
    fair = [pick_parent(history, cell_of, rng).attempt.number for _ in range(400)]
    assert 150 < fair.count(2) < 250
    barren = [
        trial(
            n,
            1.0,
            gap="host",
            knobs={"drafter": "none", "threads": n % 4 + 1},
            parents=(history[1].attempt.genome.id,),
        )
        for n in range(4, 12)
    ]
    assert max(fruitless(history + barren, cell_of).values()) == 7  # the first of the eight opened a cell
    unfair = [pick_parent(history + barren, cell_of, rng).attempt.number for _ in range(400)]
    assert unfair.count(2) < 0.7 * unfair.count(3)
    assert unfair.count(2) > 0


def test_an_improving_child_makes_its_parents_cell_fertile_again():
    parent = trial(1, 1.2, gap="host", knobs={"threads": 1})
    source = (parent.attempt.genome.id,)
    fruitless_child = trial(2, 1.1, gap="host", knobs={"threads": 2}, parents=source)
    good_child = trial(3, 1.3, gap="weights", knobs={"threads": 3}, parents=source)
    cell = cell_of(parent.evaluation.descriptor)
    assert fruitless([parent, fruitless_child], cell_of)[cell] == 1
    assert fruitless([parent, fruitless_child, good_child], cell_of)[cell] == 0


def test_the_registry_names_its_operators():
    assert [operator.name for operator in all_operators(cell_of)] == list(REGISTRY)


def test_the_landscape_has_its_optimum_where_it_says():
    best = {
        "drafter": "suffix",
        "draft_length": 12,
        "suffix_depth": 32,
        "min_probability": 0.3,
        "threads": 4,
        "linear_path": "packed",
    }
    top = speed(Genome.complete(SPACE, best).knobs)
    assert top == pytest.approx(2.53, abs=0.01)
    assert all(speed(t.attempt.genome.knobs) <= top for t in random_history(SPACE, 300))


def test_proposals_with_a_history_of_failures_only_go_on():
    history = [trial(n, outcome=Outcome.RUNTIME, knobs=g.knobs) for n, g in enumerate(seeds(SPACE), 1)]
    for _ in range(4):  # the quartile settings are still to come
        proposal = proposer().propose(history, random.Random(3))
        assert proposal.operator == "quartile"
        number = len(history) + 1
        failed = trial(number, outcome=Outcome.RUNTIME, knobs=proposal.genome.knobs)
        history.append(replace(failed, attempt=replace(failed.attempt, operator="quartile")))
    proposal = proposer().propose(history, random.Random(3))
    assert proposal.operator == "random"


def test_the_union_of_what_helped_apart_follows_the_seeds():
    history = [
        trial(1, 1.0, knobs=stock_genome(SPACE).knobs),
        trial(2, 1.3, knobs=Genome.complete(SPACE, {"drafter": "suffix"}).knobs),
        trial(3, 1.5, knobs=Genome.complete(SPACE, {"linear_path": "packed"}).knobs),
    ]
    proposal = proposer().propose(history, random.Random(0))
    assert proposal.operator == "union"
    assert (proposal.genome.knobs["drafter"], proposal.genome.knobs["linear_path"]) == ("suffix", "packed")
    assert set(proposal.parents) == {history[1].attempt.genome.id, history[2].attempt.genome.id}


def test_no_union_with_what_did_not_beat_stock_beyond_the_noise():
    history = [
        trial(1, 1.0, knobs=stock_genome(SPACE).knobs),
        trial(2, 1.001, knobs=Genome.complete(SPACE, {"drafter": "suffix"}).knobs),
        trial(3, 1.5, knobs=Genome.complete(SPACE, {"linear_path": "packed"}).knobs),
    ]
    assert Union().propose(SPACE, history, random.Random(0)) is None
