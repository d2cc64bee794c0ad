"""Recordings on disk: what is read is what was written, a damaged one is refused, and its name is its content."""

import numpy
import pytest
from engine_helpers import ExactTarget
from scored_drafter import ScoredModel

from autotune.replay.compare import lines, policies, with_budget
from autotune.replay.recording import Recording, drafting, recording_path
from autotune.replay.replay import Replay
from engine.base import Request, Settings
from engine.loop import Decoder
from engine.record import record
from space.errors import EngineError, InputError


@pytest.fixture(scope="module")
def recording():
    requests = [Request(prompt=(1, 2, 3, n), max_tokens=20, stop_ids=(9,)) for n in range(3)]
    decoder = Decoder(ExactTarget(), 128)
    traces = [record(decoder, request, Settings(), ScoredModel(vocab=4, seed=1)) for request in requests]
    return Recording(kind="dflash", bound=drafting(Settings()), traces=tuple(traces))


def test_what_is_read_is_what_was_written(recording, tmp_path):
    path = tmp_path / "deep" / "r.npz"
    recording.save(path)
    again = Recording.load(path)
    assert (again.kind, again.bound) == (recording.kind, recording.bound)
    for ours, theirs in zip(recording.traces, again.traces, strict=True):
        assert (ours.request, ours.tokens) == (theirs.request, theirs.tokens)
        assert numpy.array_equal(ours.chains, theirs.chains)
        assert numpy.array_equal(ours.first.edges, theirs.first.edges)
        assert numpy.array_equal(ours.second.ids, theirs.second.ids)
    assert [p.name for p in path.parent.iterdir()] == ["r.npz"], "nothing unfinished is left"
    policy = Settings(drafter="dflash", draft_length=5, tree="best_first")
    assert Replay(again).steps(policy) == Replay(recording).steps(policy)


def test_a_damaged_recording_is_refused(recording, tmp_path):
    path = tmp_path / "r.npz"
    recording.save(path)
    for content in (b"", b"no file of numpy", path.read_bytes()[:4000]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"the recording .* is damaged .*; delete it to record anew"):
            Recording.load(path)


def test_where_nothing_can_be_written(recording, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write the recording"):
        recording.save(tmp_path / "file" / "r.npz")


def test_the_name_follows_the_content(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(100_000))
    request = Request(prompt=(1, 2), max_tokens=9)

    def name(request=request, settings=None):
        return recording_path(tmp_path, folder, None, [request], settings or Settings())

    first = name()
    assert first == name(settings=Settings(drafter="suffix", tree_nodes=3, threads=4)), "policies share a recording"
    others = [name(Request(prompt=(1, 2), max_tokens=8)), name(settings=Settings(draft_vocabulary=8192))]
    weights.write_bytes(bytes(99_999) + b"x")
    assert len({first, name(), *others}) == 4
    with pytest.raises(EngineError, match="cannot read"):
        recording_path(tmp_path, tmp_path / "nowhere", None, [request], Settings())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(drafter="dflash", markov_candidates=8), "markov_candidates = 8 cannot be replayed: .* with 64"),
        (Settings(drafter="dspark"), "drafter 'dspark' cannot be replayed: recorded is 'dflash'"),
    ],
)
def test_what_was_not_recorded_is_refused(recording, settings, message):
    with pytest.raises(InputError, match=message):
        Replay(recording).evaluate([settings])


def test_which_policies_are_looked_up(recording):
    replay = Replay(recording)
    fast = {name: replay.is_fast(with_budget(settings, 16)) for name, settings in policies(recording).items()}
    slow = {name for name, quick in fast.items() if not quick}
    assert slow == {"best-first, suffix branch", "best-first, second pass", "best-first, margin"}


def test_the_table_of_a_set(recording):
    table = {line.policy: line.taus for line in lines("some", recording)}
    assert set(table) == set(policies(recording))
    assert all(1 <= tau <= 8 for taus in table.values() for tau in taus)
    assert list(table["best-first tree"]) == sorted(table["best-first tree"]), "on these answers, more nodes help"
    text = Recording(kind="none", bound=recording.bound, traces=recording.traces)
    assert [line.policy for line in lines("some", text)] == ["n-gram chain", "suffix chain"]
