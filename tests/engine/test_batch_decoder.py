"""Several requests at once: what each says is what it says alone, whoever else is there and whatever batching does."""

import threading

import pytest
import torch
from engine_helpers import ExactTarget, assert_same_answer, some_prompt
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.batch.decoder
from engine.base import Request, Sampling, Settings
from engine.batch.decoder import BatchDecoder
from engine.cache import KVCache
from engine.drafters.parallel import DFlashCheckpoint
from engine.loop import Decoder
from engine.models.llama import Rows
from space.errors import EngineError

PLAIN = Settings(drafter="suffix", draft_length=6, suffix_factor=4.0, min_probability=0.0)
PACKED = Settings(
    drafter="suffix", draft_length=8, suffix_factor=4.0, min_probability=0.0, packing="survival", node_budget=9
)
LOADED = Settings(drafter="ngram", draft_length=8, ngram_min=1, length_schedule="load", schedule_cost=0.1)
HALVES = Settings(drafter="suffix", draft_length=6, suffix_factor=4.0, min_probability=0.0, pipeline="halves")


@st.composite
def batching(draw):
    """Settings of every way to batch."""
    return Settings(
        drafter=draw(st.sampled_from(["none", "ngram", "suffix"])),
        draft_length=draw(st.integers(1, 12)),
        ngram_min=draw(st.integers(1, 5)),
        suffix_factor=draw(st.sampled_from([1.0, 8.0])),
        min_probability=draw(st.sampled_from([0.0, 0.3])),
        prefill_chunk=draw(st.sampled_from([3, 64])),
        packing=draw(st.sampled_from(["all", "survival"])),
        node_budget=draw(st.integers(1, 20)),
        packing_cost=draw(st.sampled_from([0.0, 0.05, 0.5])),
        length_schedule=draw(st.sampled_from(["fixed", "load"])),
        schedule_cost=draw(st.sampled_from([0.0, 0.05, 0.5])),
        hysteresis=draw(st.sampled_from([0.0, 0.1])),
        pipeline=draw(st.sampled_from(["off", "halves"])),
    )


@st.composite
def asking(draw):
    return Request(
        prompt=tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=40))),
        max_tokens=draw(st.integers(1, 40)),
        stop_ids=tuple(draw(st.sets(st.integers(0, 3), max_size=1))),
        sampling=Sampling(temperature=draw(st.sampled_from([0.0, 0.5])), seed=draw(st.integers(0, 9))),
    )


def assert_log_adds_up(found):
    log, answers = found.log, found.generations
    assert len({len(getattr(log, name)) for name in log.__dataclass_fields__}) == 1
    assert log.rows == [requests + nodes for requests, nodes in zip(log.requests, log.nodes, strict=True)]
    assert all(a <= n <= d for a, n, d in zip(log.accepted, log.nodes, log.drafted, strict=True))
    assert sum(log.requests) == sum(len(answer.log.drafted) for answer in answers)
    assert sum(log.nodes) == sum(sum(answer.log.drafted) for answer in answers)
    assert sum(log.accepted) == sum(sum(answer.log.accepted) for answer in answers)
    for answer in answers:
        assert len(answer.tokens) == 1 + len(answer.log.accepted) + sum(answer.log.accepted)
        assert len(answer.log.draft_seconds) == len(answer.log.verify_seconds) == len(answer.log.accepted)


@settings(deadline=None)
@given(st.lists(asking(), min_size=1, max_size=7), batching(), st.integers(1, 7), st.integers(0, 20))
def test_each_request_says_what_ar_says_alone(requests, batched, slots, seed):
    """On a target without rounding, greedy and sampled."""
    found = BatchDecoder(ExactTarget(seed=seed), 256, slots).generate(requests, batched)
    for request, answer in zip(requests, found.generations, strict=True):
        alone = Decoder(ExactTarget(seed=seed), 256).generate(request, Settings())
        assert (answer.tokens, answer.finish) == (alone.tokens, alone.finish)
    assert_log_adds_up(found)
    assert max(found.log.requests, default=0) <= slots
    joined = [r for r, a in zip(requests, found.generations, strict=True) if a.log.accepted]
    assert sum(found.log.prefill_rows) >= sum(len(request.prompt) for request in joined)
    if batched.packing == "survival":
        assert max(found.log.nodes, default=0) <= batched.node_budget


@pytest.fixture(scope="module")
def mixed_requests():
    """Seven requests of different lengths, some of them sampled."""
    return [
        Request(
            prompt=some_prompt(5 + 23 * i, seed=i),
            max_tokens=12 + 9 * i,
            stop_ids=(257,),
            sampling=Sampling(temperature=0.7 * (i % 2), top_k=40, top_p=0.95, seed=i),
        )
        for i in range(7)
    ]


@pytest.mark.parametrize("batched", [PLAIN, PACKED, LOADED, HALVES], ids=["plain", "packed", "loaded", "halves"])
def test_composition_does_not_change_tokens(tiny_model, mixed_requests, batched):
    """A real forward pass: alone, in threes, all seven, all through two slots."""
    alone = [Decoder(tiny_model, 512).generate(request, Settings()).tokens for request in mixed_requests]
    for count, slots in ((1, 1), (3, 3), (7, 7), (7, 2)):
        found = BatchDecoder(tiny_model, 512, slots).generate(mixed_requests[:count], batched)
        for request, answer, expected in zip(mixed_requests, found.generations, alone, strict=False):
            assert_same_answer(tiny_model, request, answer.tokens, expected)
        assert_log_adds_up(found)
    assert sum(found.log.accepted) > 0


class Watched:
    """A drafter checkpoint that keeps what each request's drafter proposes."""

    def __init__(self, checkpoint):
        self.kind = checkpoint.kind
        self._checkpoint = checkpoint
        self.proposals = []

    def start(self, settings):
        drafter, seen = self._checkpoint.start(settings), []
        propose = drafter.propose
        drafter.propose = lambda limit: seen.append(propose(limit)) or seen[-1]
        self.proposals.append(seen)
        return drafter


def test_each_request_has_its_own_taps(tiny_model, tiny_dflash, mixed_requests):
    """A drafter that reads the target's layers proposes in a batch what it proposes alone."""
    together, alone = (Watched(DFlashCheckpoint(tiny_dflash, tiny_model)) for _ in range(2))
    neural = Settings(drafter="dflash", draft_length=4)
    found = BatchDecoder(tiny_model, 512, 4, together).generate(mixed_requests, neural)
    same = compared = 0
    for request, answer in zip(mixed_requests, found.generations, strict=True):
        expected = Decoder(tiny_model, 512, alone).generate(request, neural)
        assert_same_answer(tiny_model, request, answer.tokens, expected.tokens)
    for ours, theirs in zip(together.proposals, alone.proposals, strict=True):
        same += sum(a == b for a, b in zip(ours, theirs, strict=False))
        compared += max(len(ours), len(theirs))
    assert same > 0.9 * compared > 100


def test_packed_rows_are_those_of_one_pass_each(tiny_model):
    """The packed forward itself: hidden states, taps and caches; chains and a tree."""

    def parts():
        caches = [KVCache(tiny_model.config, 128) for _ in range(3)]
        for cache, length in zip(caches, (70, 3, 20), strict=True):
            tiny_model.forward(torch.tensor(some_prompt(length, length)), torch.arange(length), cache)
            cache.commit(list(range(length)))
        chain, tree = torch.arange(4), torch.tensor([0, 1, 1, 2])
        seen = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool()
        shapes = [(chain, None), (torch.arange(1), None), (tree, seen)]
        return [
            Rows(tokens=torch.arange(len(depths)) + 9, positions=cache.length + depths, cache=cache, visible=visible)
            for cache, (depths, visible) in zip(caches, shapes, strict=True)
        ]

    together, apart = parts(), parts()
    hidden, taps = tiny_model.forward_packed(together, (0,))
    single = [tiny_model.forward_tapped(p.tokens, p.positions, p.cache, p.visible, (0,)) for p in apart]
    torch.testing.assert_close(hidden, torch.cat([h for h, _ in single]), atol=0.05, rtol=0)
    torch.testing.assert_close(taps, torch.cat([t for _, t in single]), atol=0.05, rtol=0)
    for a, b in zip(together, apart, strict=True):
        torch.testing.assert_close(a.cache.keys, b.cache.keys, atol=0.05, rtol=0)


REQUEST = Request(prompt=(1, 2, 3, 1), max_tokens=30)


def answer_to(request):
    return Decoder(ExactTarget(), 256).generate(request, Settings()).tokens


@pytest.mark.parametrize("batched", [PLAIN, HALVES], ids=["plain", "halves"])
def test_requests_join_and_leave_between_steps(batched):
    with BatchDecoder(ExactTarget(), 256, 3).open(batched) as batch:
        first, second = batch.join(REQUEST), batch.join(Request(prompt=(2, 2), max_tokens=90))
        answers = batch.step()
        late = batch.join(Request(prompt=(3, 0, 1), max_tokens=7))
        waits = batch.join(Request(prompt=(0,), max_tokens=5))
        gone = batch.join(Request(prompt=(1,), max_tokens=5))
        answers |= batch.step()
        batch.leave(second)
        batch.leave(gone)
        while batch.busy:
            answers |= batch.step()
        for ticket in (second, gone, first, 99):
            with pytest.raises(EngineError, match=f"request {ticket} is not in this batch"):
                batch.leave(ticket)
        assert batch.step() == {}
    assert sorted(answers) == [first, late, waits]
    assert answers[first].tokens == answer_to(REQUEST)
    assert answers[late].tokens == answer_to(Request(prompt=(3, 0, 1), max_tokens=7))
    assert answers[waits].tokens == answer_to(Request(prompt=(0,), max_tokens=5))


def test_who_finds_no_slot_waits_in_order():
    requests = [Request(prompt=(i % 4,), max_tokens=6) for i in range(5)]
    with BatchDecoder(ExactTarget(), 64, 2).open(Settings()) as batch:
        tickets = [batch.join(request) for request in requests]
        order = []
        while batch.busy:
            order += sorted(batch.step())
    assert order == tickets
    assert batch.log.requests == [2] * 10 + [1] * 5


def test_one_pass_verifies_the_rows_of_all():
    """Rows are packed: a step is one pass, whatever each request drafts."""
    target = ExactTarget()
    passes = []
    inner = target.forward_packed
    target.forward_packed = lambda parts, taps=(): passes.append([len(p.tokens) for p in parts]) or inner(parts, taps)
    found = BatchDecoder(target, 256, 4).generate([REQUEST] * 4, PLAIN)
    assert [sum(rows) for rows in passes] == found.log.rows
    assert len(passes) == len(found.generations[0].log.accepted)
    assert all(len(rows) == 4 for rows in passes)


def test_a_lane_is_drafted_while_the_other_is_verified(monkeypatch):
    """Drafting waits for a pass that has begun and not ended, and the pass for the drafting."""
    verifying, drafted = threading.Event(), threading.Event()
    met = []
    target = ExactTarget()
    inner, make = target.forward_packed, engine.batch.decoder.make_drafter

    def forward_packed(parts, taps=()):
        verifying.set()
        met.append(drafted.wait(0.2))
        drafted.clear()
        verifying.clear()
        return inner(parts, taps)

    class Waiting:
        taps = ()

        def __init__(self, drafter):
            self._drafter = drafter
            self.extend = drafter.extend

        def propose(self, limit):
            if threading.current_thread() is threading.main_thread():
                raise AssertionError("drafts belong into the drafting thread")
            verifying.wait(0.2)
            drafted.set()
            return self._drafter.propose(limit)

    target.forward_packed = forward_packed
    monkeypatch.setattr(engine.batch.decoder, "make_drafter", lambda *args: Waiting(make(*args)))
    requests = [REQUEST, Request(prompt=(2, 1), max_tokens=30)]
    found = BatchDecoder(target, 256, 2).generate(requests, HALVES)
    assert [a.tokens for a in found.generations] == [answer_to(request) for request in requests]
    assert met.count(True) >= len(met) - 3
    assert found.log.requests[:4] == [1, 1, 1, 1]


def test_the_pipeline_is_deterministic(tiny_model, mixed_requests):
    """The same passes each time, however fast the thread is."""
    logs = [BatchDecoder(tiny_model, 512, 4).generate(mixed_requests, HALVES).log for _ in range(2)]
    for name in ("requests", "rows", "drafted", "nodes", "accepted", "context", "prefill_rows"):
        assert getattr(logs[0], name) == getattr(logs[1], name)
    assert 1 < max(logs[0].requests) <= 2


def test_a_failing_drafter_fails_the_step(monkeypatch):
    class Failing:
        taps = ()

        def extend(self, tokens, taps=None):
            raise EngineError("no draft today")

    monkeypatch.setattr(engine.batch.decoder, "make_drafter", lambda *_: Failing())
    for batched in (PLAIN, HALVES):
        with pytest.raises(EngineError, match="no draft today"):
            BatchDecoder(ExactTarget(), 64, 2).generate([REQUEST], batched)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ((), 5, "the prompt is empty"),
        ((1,) * 90, 11, "90 prompt tokens and 11 new ones need 101 positions; max_context allows 100"),
        ((1,), 0, "max_tokens 0: ask for at least one token"),
    ],
)
def test_what_cannot_be_decoded_is_refused_when_it_joins(prompt, max_tokens, message):
    with (
        BatchDecoder(ExactTarget(), 100, 2).open(Settings()) as batch,
        pytest.raises(EngineError, match=message),
    ):
        batch.join(Request(prompt=prompt, max_tokens=max_tokens))


@pytest.mark.parametrize("key", ["packing", "length_schedule", "pipeline"])
def test_unknown_ways_of_batching_are_refused(key):
    with pytest.raises(EngineError, match=f"{key} 'magic' is not there; known: "):
        BatchDecoder(ExactTarget(), 100, 2).open(Settings(**{key: "magic"}))


def test_a_batch_needs_slots_and_positions(tiny_model):
    with pytest.raises(EngineError, match="slots 0"):
        BatchDecoder(ExactTarget(), 100, 0)
    with pytest.raises(EngineError, match="max_context 1025: this model has 1024 positions"):
        BatchDecoder(tiny_model, 1025, 2)
