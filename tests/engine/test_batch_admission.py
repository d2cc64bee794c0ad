"""What a batch admits: the likeliest nodes per cost, lengths by load; and never by the token that is admitted."""

import math
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_statistics import Toy, plausibility

from engine.batch.acceptance import Acceptance
from engine.batch.packing import Node, pack, row_cost
from engine.batch.schedule import PROBE, LengthSchedule
from engine.models.config import LlamaConfig
from engine.verify.sampling import DRAFT, draw, sample_chain, stream

LEAST = 1e-3
TRIALS = 3000


# Packing


@st.composite
def forests(draw):
    """Nodes of a few requests' trees, and each node's parent."""
    nodes, parents = [], {}
    for owner in range(draw(st.integers(1, 4))):
        survivals, cost = [], draw(st.sampled_from([1.0, 1.3, 2.0]))
        for index in range(draw(st.integers(0, 7))):
            parent = draw(st.integers(-1, index - 1))
            above = 1.0 if parent < 0 else survivals[parent]
            survivals.append(above * draw(st.sampled_from([0.1, 0.5, 0.9, 1.0])))
            nodes.append(Node(owner=owner, index=index, survival=survivals[-1], cost=cost))
            parents[owner, index] = parent
    return nodes, parents


@given(forests(), st.integers(0, 30), st.sampled_from([0.0, 0.02, 0.2, 1.0]))
def test_the_likeliest_nodes_per_cost_are_admitted_with_their_ancestors(forest, budget, share):
    nodes, parents = forest
    fixed = [1.0] * 4
    admitted = pack(nodes, budget=budget, row_share=share, fixed=fixed)
    found = {(node.owner, node.index) for node in admitted}
    assert len(found) == len(admitted) <= budget
    assert all(parents[key] < 0 or (key[0], parents[key]) in found for key in found)
    worth = sorted((node.survival / node.cost for node in nodes), reverse=True)
    assert [node.survival / node.cost for node in admitted] == worth[: len(admitted)]

    def rate(count):
        best = sorted(nodes, key=lambda node: -node.survival / node.cost)[:count]
        cost = 1 + share * (sum(fixed) + sum(node.cost for node in best))
        return (len(fixed) + sum(node.survival for node in best)) / cost

    assert rate(len(admitted)) >= max(rate(count) for count in range(len(admitted) + 1)) - 1e-12
    if len(admitted) < min(budget, len(nodes)):
        assert rate(len(admitted) + 1) <= rate(len(admitted)) + 1e-12


def test_the_budget_goes_where_drafts_are_accepted():
    sure, poor = Acceptance(), Acceptance()
    for _ in range(30):
        sure.observe(6, 6)
        poor.observe(6, 0)
    nodes = [
        Node(owner=owner, index=index, survival=survival)
        for owner, acceptance in enumerate([poor, sure])
        for index, survival in enumerate(acceptance.survival(6))
    ]
    owners = Counter(node.owner for node in pack(nodes, budget=6, row_share=0.0, fixed=[1.0, 1.0]))
    assert owners == {1: 6}
    cheap = pack(nodes, budget=12, row_share=0.0, fixed=[1.0, 1.0])
    dear = pack(nodes, budget=12, row_share=0.3, fixed=[1.0, 1.0])
    assert len(cheap) == 12
    assert {node.owner for node in dear} == {1}


def test_a_row_costs_more_where_it_reads_more():
    shape = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 160, "vocab": 258, "layers": 2}
    rest = {"rope_theta": 1e4, "norm_eps": 1e-5, "tied": True, "max_position": 4096, "stop_ids": ()}
    config = LlamaConfig(**shape, **rest)
    assert row_cost(config, 0) == 1
    weights = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 160) + 64 * 258
    assert row_cost(config, 1000) == pytest.approx(1 + 2 * 2 * 64 * 1000 / weights)


# Acceptance


def test_rates_are_those_that_were_measured():
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.observe(4, 2)
    assert acceptance.rate(0) > 0.95
    assert acceptance.rate(1) > 0.95
    assert acceptance.rate(2) < 0.1
    assert 0.3 < acceptance.rate(3) < 0.9  # was never reached: nothing is known about it
    falling = acceptance.survival(4)
    assert falling == sorted(falling, reverse=True)
    assert falling == pytest.approx([math.prod(acceptance.rate(d) for d in range(n + 1)) for n in range(4)])


def test_a_request_leans_on_the_batch_until_it_knows_better():
    batch = Acceptance()
    for _ in range(50):
        Acceptance(batch).observe(3, 0)
    fresh, own = Acceptance(batch), Acceptance(batch)
    assert fresh.rate(0) == pytest.approx(batch.rate(0)) == pytest.approx(0, abs=0.1)
    for _ in range(50):
        own.observe(3, 3)
    assert own.rate(0) > 0.9


def test_what_was_long_ago_counts_less():
    acceptance = Acceptance()
    for accepted in (3, 0):
        for _ in range(150):
            acceptance.observe(3, accepted)
    assert acceptance.rate(0) < 0.2


# Schedule


def measured(accepted, steps=60):
    acceptance = Acceptance()
    for _ in range(steps):
        acceptance.observe(8, accepted)
    return acceptance


def test_lengths_fall_with_load_down_to_none():
    half = Acceptance()
    for step in range(200):
        half.observe(8, (0, 1, 2, 4)[step % 4])
    lengths = [LengthSchedule(8, 0.05, 0.0).length(requests, half) for requests in (1, 4, 16, 64, 256)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2] > 0
    assert LengthSchedule(8, 0.05, 0.0).length(64, measured(0)) == 0
    assert LengthSchedule(8, 0.0, 0.0).length(64, measured(8)) == 8


def test_hysteresis_keeps_a_length_that_is_good_enough():
    acceptance = measured(2)
    eager, calm = LengthSchedule(8, 0.02, 0.0), LengthSchedule(8, 0.02, 0.5)
    assert eager.length(4, acceptance) == 2
    assert calm.length(4, acceptance) == 8
    assert calm.length(64, measured(0)) == 0  # but not one that is far worse


def test_hysteresis_ends_a_to_and_fro():
    acceptance = Acceptance()
    for step in range(400):
        acceptance.observe(8, step % 9)

    def lengths(hysteresis):
        schedule = LengthSchedule(8, 0.04, hysteresis)
        return [schedule.length(requests, acceptance) for requests in (4, 12) * 5]

    assert len(set(lengths(0.0))) == 2
    assert lengths(0.0)[:2] * 5 == lengths(0.0)
    assert len(set(lengths(0.2)[1:])) == 1


def test_without_drafts_one_is_tried_now_and_then():
    """K = 0 measures nothing, so it would last for ever: the probe finds out when drafts have become good."""
    schedule, acceptance = LengthSchedule(8, 0.05, 0.05), measured(0)
    lengths = [schedule.length(32, acceptance) for _ in range(2 * (PROBE + 1))]
    assert lengths == ([0] * PROBE + [1]) * 2
    for _ in range(20 * PROBE):
        if schedule.length(32, acceptance):
            acceptance.observe(1, 1)
    assert schedule.length(8, acceptance) > 0


# The rule: admission never depends on the token that it admits


def by_history(drafter, last, draft, acceptance):
    """From earlier steps."""
    return acceptance.survival(len(draft))


def by_confidence(drafter, last, draft, acceptance):
    """From the draft's distributions before a token was drawn from them."""
    before = [float(drafter.next(token).max()) for token in (last, *draft[:-1])]
    return [math.prod(before[: n + 1]) for n in range(len(draft))]


def by_sampled_token(drafter, last, draft, acceptance):
    """Biased: from the probability of the very token that was drawn."""
    own = [float(drafter.next(a)[b]) for a, b in zip((last, *draft), draft, strict=False)]
    return [math.prod(own[: n + 1]) for n in range(len(draft))]


def by_what_follows(drafter, last, draft, acceptance):
    """Biased: from the next position's distribution, which the token itself decides."""
    after = [float(drafter.next(token).max()) for token in draft]
    return [math.prod(after[: n + 1]) for n in range(len(draft))]


def batched_texts(estimate, target, drafter):
    """Texts of three tokens of two requests that share a budget of nodes, by draws, packing and rejection."""
    found = [Counter(), Counter()]
    for trial in range(TRIALS):
        texts, acceptances = [[0], [1]], [Acceptance(), Acceptance()]
        while min(map(len, texts)) < 4:
            drafts, nodes = [], []
            for owner, text in enumerate(texts):
                draft = []
                for depth in range(2):
                    q = drafter.next((text + draft)[-1])
                    draft.append(draw(q, stream(2 * trial + owner, len(text) + depth, DRAFT).random()))
                drafts.append(draft)
                survival = estimate(drafter, text[-1], draft, acceptances[owner])
                nodes += [Node(owner=owner, index=i, survival=s) for i, s in enumerate(survival)]
            admitted = Counter(node.owner for node in pack(nodes, budget=2, row_share=0.3, fixed=[1.0, 1.0]))
            for owner, text in enumerate(texts):
                draft = drafts[owner][: admitted[owner]]
                p = torch.stack([target.next(token) for token in (text[-1], *draft)])
                q = torch.stack([drafter.next(token) for token in (text[-1], *draft)])
                streams = partial(lambda seed, at, depth: stream(seed, at + depth), 2 * trial + owner, len(text))
                commit = sample_chain(draft, p, q, streams)
                acceptances[owner].observe(len(draft), len(commit) - 1)
                text += commit
        for owner, text in enumerate(texts):
            found[owner][tuple(text[1:4])] += 1
    return found


@pytest.mark.parametrize(
    ("estimate", "exact"),
    [(by_history, True), (by_confidence, True), (by_sampled_token, False), (by_what_follows, False)],
)
def test_admission_that_depends_on_its_token_changes_the_text(estimate, exact):
    target, drafter = Toy(1, zeros=False), Toy(101, zeros=False)
    found = batched_texts(estimate, target, drafter)
    passed = [plausibility(counts, target.texts(start, 3)) > LEAST for start, counts in enumerate(found)]
    assert passed == [exact, exact]


def test_a_node_knows_no_token():
    assert set(Node.__dataclass_fields__) == {"owner", "index", "survival", "cost"}
