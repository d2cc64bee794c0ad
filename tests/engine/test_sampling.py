"""Sampling is exact: enumerated, or by chi-square with fixed seeds; broken rules fail the same tests."""

from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_statistics import VOCAB, Toy, committed, plausibility

import engine.verify.sampling
from engine.base import GREEDY, Sampling
from engine.verify.chain import greedy_chain
from engine.verify.sampling import (
    DRAFT,
    VERIFY,
    Remainder,
    choose,
    distribution,
    draw,
    draw_margin,
    draw_siblings,
    sample_chain,
    sample_tree,
    stream,
)
from space.errors import EngineError

LEAST = 1e-3
"""A sampler passes a chi-square test above this. Seeds are fixed, so that a pass stays a pass."""
TRIALS = 4000
START = 1


class KeepsTarget(Remainder):
    """Broken: after a rejection it goes on with p instead of what is left of p."""

    def reject(self, token):
        target = self.target
        super().reject(token)
        self.target = target


class WithReplacement(Remainder):
    """Broken: it takes siblings that were drawn without replacement for independent ones."""

    def reject(self, token):
        drafted = self.drafted
        super().reject(token)
        self.drafted = drafted


class Relaxed(Remainder):
    """Broken: it accepts more than p allows."""

    def acceptance(self, token):
        return min(1.0, 1.5 * super().acceptance(token))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_one_parents_token_has_the_targets_distribution(seed, count):
    """Exact: every draw of children, every acceptance."""
    p, q = Toy(seed).next(START), Toy(seed + 100).next(START)
    torch.testing.assert_close(committed(p, q, count), p, atol=1e-12, rtol=0)


@pytest.mark.parametrize("broken", [KeepsTarget, WithReplacement, Relaxed])
def test_a_broken_rule_is_found_by_enumeration(broken):
    p, q = Toy(0).next(START), Toy(100).next(START)
    assert (committed(p, q, 2, broken) - p).abs().max() > 0.01


def test_drafts_equal_to_the_target_are_all_accepted():
    p = Toy(3).next(START)
    torch.testing.assert_close(committed(p, p.clone(), 2), p, atol=1e-12, rtol=0)
    assert all(Remainder(p, p).acceptance(int(token)) == 1.0 for token in p.nonzero())


def test_siblings_are_drawn_without_replacement():
    q = torch.tensor([0.5, 0.3, 0.2, 0.0]).double()
    rng = stream(7, 0, DRAFT)
    found = Counter(tuple(draw_siblings(q, 2, rng)) for _ in range(TRIALS))
    expected = {(a, b): float(q[a] * q[b] / (1 - q[a])) for a in range(3) for b in range(3) if a != b}
    assert plausibility(found, expected) > LEAST
    assert sorted(draw_siblings(q, 9, rng)) == [0, 1, 2]
    independent = Counter((int(rng.choice(3, p=q[:3])), int(rng.choice(3, p=q[:3]))) for _ in range(TRIALS))
    assert plausibility(independent, expected) < LEAST


def drawn_tree(last, drafter, widths, rng, siblings=draw_siblings):
    """A tree with `widths[d]` children a node at depth d, drawn from the drafter: tokens, parents, and q by row."""
    tokens, parents, q, layer = [], [], [drafter.next(last)], [-1]
    for width in widths:
        fresh = []
        for parent in layer:
            for token in siblings(q[parent + 1], width, rng):
                fresh.append(len(tokens))
                tokens.append(token)
                parents.append(parent)
                q.append(drafter.next(token))
        layer = fresh
    return tokens, parents, torch.stack(q)


def texts(target, drafter, widths, *, purpose=DRAFT, siblings=draw_siblings, length=3):
    """Texts of `length` tokens from repeated drafting and verification, counted over TRIALS requests."""
    found = Counter()
    for seed in range(TRIALS):
        text = [START]
        while len(text) <= length:
            at = len(text)
            tokens, parents, q = drawn_tree(text[-1], drafter, widths, stream(seed, at, purpose), siblings)
            p = torch.stack([target.next(token) for token in (text[-1], *tokens)])
            streams = partial(lambda seed, at, depth: stream(seed, at + depth), seed, at)
            walk = sample_tree(tokens, parents, p, q, streams)
            text += [*(tokens[node] for node in walk.nodes), walk.token]
        found[tuple(text[1 : length + 1])] += 1
    return found


@pytest.mark.parametrize("widths", [(1,), (1, 1, 1), (2,), (2, 2), (3, 1)])
def test_texts_have_the_targets_distribution(widths):
    target, drafter = Toy(1), Toy(101)
    assert plausibility(texts(target, drafter, widths), target.texts(START, 3)) > LEAST


@pytest.mark.parametrize("broken", [KeepsTarget, WithReplacement, Relaxed])
def test_a_broken_rule_is_found_by_its_texts(monkeypatch, broken):
    monkeypatch.setattr(engine.verify.sampling, "Remainder", broken)
    target, drafter = Toy(1), Toy(101)
    assert plausibility(texts(target, drafter, (2, 1)), target.texts(START, 3)) < LEAST


def test_drafting_with_the_random_numbers_of_verification_is_found():
    target, drafter = Toy(1), Toy(101)

    def one(q, _, rng):
        return [draw(q, rng.random())]

    expected = target.texts(START, 3)
    assert plausibility(texts(target, drafter, (1, 1), siblings=one), expected) > LEAST
    assert plausibility(texts(target, drafter, (1, 1), siblings=one, purpose=VERIFY), expected) < LEAST


def test_direct_sampling_passes_and_another_model_fails():
    """The test itself: it accepts the target's own texts and rejects those of a slightly different one."""
    target = Toy(1)
    rng = stream(5, 0)

    def direct(model):
        found = Counter()
        for _ in range(TRIALS):
            text = [START]
            while len(text) < 4:
                text.append(draw(model.next(text[-1]), rng.random()))
            found[tuple(text[1:])] += 1
        return found

    assert plausibility(direct(target), target.texts(START, 3)) > LEAST
    other = Toy(1)
    other.table = 0.9 * other.table + 0.1 * (other.table > 0) / (other.table > 0).sum(-1, keepdim=True)
    assert plausibility(direct(other), target.texts(START, 3)) < LEAST


@given(st.integers(0, 10**6), st.lists(st.integers(0, VOCAB - 1), max_size=5), st.integers(0, 50))
def test_a_deterministic_chain_emits_the_tokens_of_direct_sampling(seed, draft, position):
    """One-hot q: the committed tokens are those that AR draws with the same random numbers."""
    target = Toy(seed)
    p = torch.stack([target.next(token) for token in (START, *draft)])
    found = sample_chain(draft, p, None, lambda depth: stream(seed, position + depth))
    choices = [draw(row, stream(seed, position + depth).random()) for depth, row in enumerate(p)]
    assert found == greedy_chain(draft, choices)
    sampling = Sampling(temperature=1.0, seed=seed)
    assert choose(p.log(), sampling, range(position, position + len(p))) == choices


@given(st.integers(0, 10**6), st.data())
def test_a_deterministic_tree_follows_direct_sampling(seed, data):
    target = Toy(seed)
    tokens, parents, taken = [], [], set()
    for node in range(data.draw(st.integers(0, 8))):
        parent = data.draw(st.integers(-1, node - 1))
        free = [token for token in range(VOCAB) if (parent, token) not in taken]
        if free:
            tokens.append(data.draw(st.sampled_from(free)))
            parents.append(parent if parent < len(parents) else -1)
            taken.add((parents[-1], tokens[-1]))
    p = torch.stack([target.next(token) for token in (START, *tokens)])
    walk = sample_tree(tokens, parents, p, None, lambda depth: stream(seed, depth))
    text = [*(tokens[node] for node in walk.nodes), walk.token]
    last, direct = START, []
    for depth in range(len(text)):
        last = draw(target.next(last), stream(seed, depth).random())
        direct.append(last)
    assert text == direct
    ends_at = walk.nodes[-1] if walk.nodes else -1
    assert (ends_at, walk.token) not in {(parents[i], tokens[i]) for i in range(len(tokens))}


def test_greedy_is_the_argmax():
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    assert choose(logits, GREEDY, range(5)) == logits.argmax(-1).tolist()
    assert choose(logits, Sampling(temperature=1e-6), range(5)) == logits.argmax(-1).tolist()
    assert torch.equal(distribution(logits, GREEDY).argmax(-1), logits.argmax(-1))
    assert choose(logits, Sampling(temperature=5.0, top_k=1), range(5)) == logits.argmax(-1).tolist()


def test_temperature_top_k_and_top_p():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()

    def p(**options):
        return distribution(logits, Sampling(**options))[0].tolist()

    assert p(temperature=1.0) == pytest.approx([0.5, 0.25, 0.15, 0.1])
    squares = [0.25, 0.0625, 0.0225, 0.01]
    assert p(temperature=0.5) == pytest.approx([s / sum(squares) for s in squares])
    assert p(temperature=1.0, top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert p(temperature=1.0, top_k=9) == pytest.approx([0.5, 0.25, 0.15, 0.1])
    assert p(temperature=1.0, top_p=0.7) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert p(temperature=1.0, top_p=0.76) == pytest.approx([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0])
    assert p(temperature=1.0, top_p=0.01) == pytest.approx([1, 0, 0, 0])
    assert p(temperature=1.0, top_k=3, top_p=0.8) == pytest.approx([2 / 3, 1 / 3, 0, 0])


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_a_large_vocabulary_has_the_same_nucleus(top_p):
    """By whole sorting, whether the likeliest thousand reach top_p or not."""
    logits = torch.randn(6, 5000, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [[0.1], [1], [2], [3], [4], [9]]
    )
    found = distribution(logits, Sampling(temperature=1.0, top_p=top_p))
    p = logits.double().softmax(-1)
    for row, kept in zip(p, found > 0, strict=True):
        order = row.argsort(descending=True)
        count = int((row[order].cumsum(0) < top_p).sum()) + 1
        assert set(order[:count].tolist()) == set(kept.nonzero()[:, 0].tolist())


def test_equals_at_the_border_are_kept():
    logits = torch.tensor([[1.0, 2.0, 1.0, 0.0]])
    kept = distribution(logits, Sampling(temperature=1.0, top_k=2))[0] > 0
    assert kept.tolist() == [True, True, True, False]
    half = distribution(torch.zeros(1, 4), Sampling(temperature=1.0, top_p=0.5))[0]
    assert half.tolist() == [0.25] * 4


def test_draws_cover_probable_tokens_only():
    p = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0]).double()
    assert [draw(p, u) for u in (0.0, 0.2499, 0.25, 0.999999, 1 - 2**-53)] == [1, 1, 3, 3, 3]


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_the_margin_is_the_way_to_the_tokens_interval(seed, uniform):
    p = Toy(seed).next(START)
    chosen = draw(p, uniform)
    assert draw_margin(p, chosen, uniform) < 1e-12
    for token in set(range(VOCAB)) - {chosen}:
        margin = draw_margin(p, token, uniform)
        low, high = float(p[:token].sum()), float(p[: token + 1].sum())
        assert margin == pytest.approx(low - uniform if uniform < low else uniform - high, abs=1e-12)


def test_streams_belong_to_seed_position_and_purpose():
    first = stream(3, 5).random()
    others = [stream(4, 5), stream(3, 6), stream(3, 5, DRAFT), stream(5, 3)]
    assert stream(3, 5).random() == first
    assert first not in [other.random() for other in others]
    values = Counter(int(stream(seed, position).random() * 10) for seed in range(60) for position in range(60))
    assert plausibility(values, dict.fromkeys(range(10), 0.1)) > LEAST


def test_a_token_that_q_cannot_draw_is_refused():
    p = torch.full((2, VOCAB), 1 / VOCAB).double()
    q = torch.tensor([[0.0, 0.5, 0.5, 0.0]]).double()
    with pytest.raises(EngineError, match="drafted token 3 has draft probability 0"):
        sample_chain([3], p, q, lambda depth: stream(0, depth))


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("temperature", -1.0, "give 0 .greedy. or a positive number"),
        ("temperature", float("nan"), "give 0"),
        ("temperature", float("inf"), "give 0"),
        ("top_k", -1, "give 0 .all tokens."),
        ("top_p", 0.0, "above 0, at most 1"),
        ("top_p", 1.1, "above 0, at most 1"),
        ("seed", -1, "from 0 to"),
        ("seed", 2**64, "from 0 to"),
    ],
)
def test_sampling_that_means_nothing_is_refused(field, value, allowed):
    with pytest.raises(EngineError, match=f"{field} {value}: .*{allowed}"):
        Sampling(**{field: value})
