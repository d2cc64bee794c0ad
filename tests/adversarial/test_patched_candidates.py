"""Candidates with code patches: confined, judged like any other, and told apart by how they end."""

import re
from dataclasses import replace

import pytest
from court import DRAFTS_OFTEN, attempt

from autotune.client import ROOT
from autotune.sandbox.base import UNCONFINED, Level
from autotune.sandbox.levels import RlimitsOnly
from autotune.sandbox.probe import Tried, _bubblewrap, _namespaces, best_sandbox, probed
from space.errors import SandboxError
from space.outcome import Outcome
from space.patch import CodeTree, Patch, edited, patch_between, read_edits

CHAIN = "engine/verify/chain.py"
CONDITION = "    while accepted < len(draft) and draft[accepted] == choices[accepted]:"


@pytest.fixture(scope="module", autouse=True)
def confines():
    if probed()[-1].sandbox is None:
        pytest.skip(f"this machine confines nothing: {probed()}")


@pytest.fixture(scope="module")
def tree():
    return CodeTree.read(ROOT)


def made(tree, path, old, new):
    reply = f"{path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"
    return patch_between(tree, edited(tree, read_edits(reply)))


def before_first(tree, path, marker, code):
    """A patch that puts code before the first line that begins with a marker."""
    line = next(line for line in tree.files[path].split("\n") if line.startswith(marker))
    return made(tree, path, line, f"{code}\n{line}")


def judged(court, *patches):
    return court._evaluator.evaluate(attempt(DRAFTS_OFTEN.patched(patches)), "search")


def sandbox_of(level):
    """The sandbox of a level; skips the test where this machine does not have it."""
    if level is Level.RLIMITS:
        return RlimitsOnly()
    probe = {Level.BUBBLEWRAP: _bubblewrap, Level.NAMESPACES: _namespaces}[level]()
    if probe.sandbox is None:
        pytest.skip(f"{level}: {probe.why_not}; {probe.remedy}")
    return probe.sandbox


@pytest.fixture(scope="module")
def counted(court):
    """The court's requests, with the references that are asked for written down."""
    requests, asked = court._evaluator._requests, []
    original = requests.reference
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "reference", lambda *values: asked.append(values[0]) or original(*values))
        yield asked


@pytest.mark.parametrize("level", list(Level), ids=lambda level: level.name.lower())
def test_an_honest_patch_is_measured_in_its_sandbox(court, tree, monkeypatch, level):
    sandbox = sandbox_of(level)
    monkeypatch.setattr("autotune.sandbox.workers.best_sandbox", lambda unsafe: sandbox)
    honest = before_first(tree, CHAIN, "def ", "# The same, said differently.")
    added = patch_between(tree, tree.changed({"engine/verify/extra.py": '"""One more module."""\n'}))
    evaluation = judged(court, honest, added)
    assert (evaluation.outcome, evaluation.sandbox) == (Outcome.OK, level.value), evaluation.reason
    assert evaluation.forced.exact == evaluation.forced.tokens > 0
    assert court._evaluator._requests._patched._client is None, "nothing of it is left when others are timed"
    plain = judged(court)
    assert (plain.outcome, plain.sandbox) == (Outcome.OK, UNCONFINED), plain.reason
    assert plain.score.tau == evaluation.score.tau


def test_the_patch_is_what_runs_and_a_cheat_is_a_mismatch(court, tree):
    cheat = made(tree, CHAIN, CONDITION, CONDITION.replace(" and draft[accepted] == choices[accepted]", ""))
    evaluation = judged(court, cheat)
    assert evaluation.outcome is Outcome.MISMATCH, evaluation
    assert "logits below stock's" in evaluation.reason
    assert evaluation.sandbox == best_sandbox().level.value


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        ("def (:", Outcome.COMPILE, r"engine/verify/chain.py, line \d+: invalid syntax"),
        ("import no_such_module", Outcome.RUNTIME, "No module named 'no_such_module'"),
        ("raise MemoryError", Outcome.OOM, "MemoryError"),
        ("open('/etc/shadow')", Outcome.RUNTIME, "shadow"),
    ],
)
def test_a_patch_that_cannot_run(court, tree, counted, code, outcome, reason):
    counted.clear()
    evaluation = judged(court, before_first(tree, CHAIN, "def ", code))
    assert evaluation.outcome is outcome, evaluation.reason
    assert re.search(reason, evaluation.reason), evaluation.reason
    assert counted == ([] if outcome is Outcome.COMPILE else ["ar", "stock"]), "references are looked at again"


def test_a_patch_that_hangs(court, tree, counted):
    counted.clear()
    hang = made(tree, CHAIN, CONDITION, "    while True:")
    evaluation = judged(court, hang)
    assert evaluation.outcome is Outcome.TIMEOUT, evaluation.reason
    assert counted == ["ar", "stock"]


def test_a_patch_that_no_longer_applies_names_its_hunk(court, tree):
    old = tree.changed({CHAIN: tree.files[CHAIN].replace("def ", "def old_")})
    patch = before_first(old, CHAIN, "def old_", "x = 1")
    evaluation = judged(court, patch)
    assert evaluation.outcome is Outcome.INVALID
    assert evaluation.reason.startswith(f"patch {patch.id}: {CHAIN}: hunk 1 of 1 (line ")


def test_a_model_folder_that_holds_the_archive_is_not_shown(court, tree, monkeypatch):
    monkeypatch.setenv("SPECPILOT_HOME", str(court._session._candidate._launch.model / "home"))
    with pytest.raises(SandboxError, match="and with it the archive"):
        judged(court, before_first(tree, CHAIN, "def ", "# Another one."))


def test_where_nothing_confines_patched_code_is_refused(court, tree, monkeypatch):
    tried = tuple(Tried(level=level, sandbox=None, why_not="absent", remedy="get it") for level in list(Level)[:2])
    monkeypatch.setattr("autotune.sandbox.probe.probed", lambda: tried)
    with pytest.raises(SandboxError, match=r"bubblewrap: absent; namespaces\+landlock: absent") as caught:
        judged(court, Patch(base="", diff=""))
    assert str(caught.value).splitlines()[1:] == [
        "get it",
        "Or accept that patches may read and do what you may: --unsafe-no-sandbox",
    ]
    assert isinstance(best_sandbox(unsafe=True), RlimitsOnly)
    monkeypatch.setattr("autotune.sandbox.probe.probed", lambda: (*tried[:1], replace(tried[1], sandbox="landlock")))
    assert best_sandbox(unsafe=True) == "landlock", "the flag never lowers the level"
