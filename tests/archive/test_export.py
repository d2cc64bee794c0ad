import errno
import json
import os
from dataclasses import fields, replace

import archive_records as make
import pytest

from archive.base import Environment, Forced
from archive.evidence import build_export, confirmed, prompts_hash
from archive.export import MeasuredOn, read_export, write_export
from space.deployment import find_deployment
from space.errors import ArchiveError, InputError
from space.genome import Genome
from space.outcome import Outcome
from space.patch import Patch
from space.prompts import Prompt

FAST, SLOW, FAILED = make.genome(8), make.genome(7), make.genome(9)
HISTORY = [
    (make.attempt(1, genome=FAST), make.ok(1, ratio=2.5)),
    (make.attempt(2, genome=SLOW), make.ok(2, ratio=2.0)),
    (make.attempt(3, genome=FAILED), make.ok(3, ratio=3.0)),
    (make.attempt(4, genome=FAILED), make.failed(4, stage="confirm", outcome=Outcome.UNSTABLE)),
    (make.attempt(5, genome=FAST), make.confirmation(5, ratio=2.3)),
    (make.attempt(6, genome=SLOW), make.confirmation(6, ratio=1.9)),
]


@pytest.fixture
def document():
    return build_export(make.run(), HISTORY, make.CONFIRM_PROMPTS)


@pytest.fixture
def path(tmp_path, document):
    file = tmp_path / "exports" / "engine.json"
    write_export(file, document)
    return file


def test_the_document_carries_the_confirmation_and_its_evidence(document):
    evidence = document.evidence
    assert document.genome == FAST
    assert (evidence.attempt, evidence.genome_id, evidence.ratio_ar) == ("run-a/5", FAST.id, 2.3)
    assert evidence.prompts.searched == ("seen-0", "seen-1")
    assert evidence.prompts.confirmed == ("fresh-0", "fresh-1")
    assert evidence.prompts.confirmed_hash == prompts_hash(make.CONFIRM_PROMPTS[::-1])
    assert evidence.forced.tokens == 384
    assert evidence.environment.code == "abc123"
    assert evidence.best.tokens_per_second == pytest.approx(2 * evidence.ar.tokens_per_second)
    assert (evidence.ar.tau, evidence.best.tau, evidence.best.repeats) == (63 / 64, 63 / 32, 3)
    shipped = find_deployment("cpu-smollm2")
    assert document.deployment.restore().signature == shipped.signature
    assert document.deployment.restore().name == shipped.name


def test_what_is_written_is_read_back_equal(path, document):
    assert read_export(path) == document
    assert json.loads(path.read_text())["format"] == "specpilot-engine-1"
    assert [file.name for file in path.parent.iterdir()] == ["engine.json"]


def test_knob_types_survive(tmp_path):
    genome = Genome.complete(make.SPACE, {"drafter": "suffix", "suffix_factor": 2.0, "min_probability": 0.0})
    history = [(make.attempt(1, genome=genome), make.confirmation(1))]
    write_export(tmp_path / "e.json", build_export(make.run(), history, make.CONFIRM_PROMPTS))
    assert read_export(tmp_path / "e.json").genome == genome


def test_patches_travel_with_the_knobs(tmp_path):
    patch = Patch(base="b", diff="--- a/engine/loop.py\n+++ b/engine/loop.py\n@@ -1 +1 @@\n-a\n+b\n")
    genome = FAST.patched([patch])
    document = build_export(make.run(), [(make.attempt(1, genome=genome), make.confirmation(1))], make.CONFIRM_PROMPTS)
    path = tmp_path / "e.json"
    write_export(path, document)
    assert read_export(path).genome == genome
    content = json.loads(path.read_text())
    edited = content | {"patches": [{"base": "b", "diff": patch.diff.replace("+b", "+c")}]}
    path.write_text(json.dumps(edited))
    with pytest.raises(InputError, match="export again instead of editing"):
        read_export(path)
    path.write_text(json.dumps(content | {"patches": [{"base": "b", "dif": patch.diff}]}))
    with pytest.raises(
        InputError, match=r"unknown key patches\.0\.dif; did you mean 'diff'|patches\.0\.diff is missing"
    ):
        read_export(path)


def test_the_hash_sees_every_word():
    changed = (make.CONFIRM_PROMPTS[0], replace(make.CONFIRM_PROMPTS[1], messages=({"role": "user", "content": "?"},)))
    assert prompts_hash(changed) != prompts_hash(make.CONFIRM_PROMPTS)


def test_a_genome_may_be_chosen(document):
    assert build_export(make.run(), HISTORY, make.CONFIRM_PROMPTS, SLOW.id).genome == SLOW


def test_the_last_confirmation_counts():
    again = (make.attempt(7, genome=FAST), make.failed(7, stage="confirm", outcome=Outcome.UNSTABLE))
    assert confirmed("run-a", [*HISTORY, again])[0].genome == SLOW


def test_a_genome_that_was_ever_a_mismatch_is_never_exported():
    broken = (make.attempt(7, genome=FAST), make.failed(7))
    assert confirmed("run-a", [*HISTORY, broken])[0].genome == SLOW
    with pytest.raises(ArchiveError, match="no confirmed genome that may be exported"):
        confirmed("run-a", [*HISTORY, broken], FAST.id)


@pytest.mark.parametrize(
    ("history", "genome_id", "message"),
    [
        ([], None, r"no confirmed genome that may be exported \(confirmations: none\)\nContinue the run"),
        (HISTORY[:4], None, rf"confirmations: {FAILED.id} unstable"),
        (HISTORY, FAILED.id, rf"confirmations: {FAILED.id} unstable"),
        (HISTORY[:3], FAST.id, f"genome {FAST.id} of run run-a was never confirmed .*\nConfirmed in this run: none"),
        (HISTORY, FAST.id[:11] + "x", f"no genome .*did you mean '{FAST.id}'"),
    ],
)
def test_what_may_not_be_exported(history, genome_id, message):
    with pytest.raises(ArchiveError, match=message):
        build_export(make.run(), history, make.CONFIRM_PROMPTS, genome_id)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"forced": None}, "run-a/1 cannot be exported: its tokens were not forced"),
        ({"forced": Forced(tokens=0, exact=0, near_ties=0)}, "its tokens were not forced"),
        ({"samples": make.samples()}, "not those of the confirmation: given fresh-0, fresh-1; measured seen-0, seen-1"),
        ({"samples": ()}, "no samples of ar, stock, candidate"),
    ],
)
def test_a_confirmation_without_evidence_is_refused(changes, message):
    history = [(make.attempt(1), make.confirmation(1, **changes))]
    with pytest.raises(ArchiveError, match=message):
        build_export(make.run(), history, make.CONFIRM_PROMPTS)


def test_prompts_that_the_search_saw_are_no_confirmation():
    seen = tuple(Prompt(id=f"seen-{i}", group="chat", messages=()) for i in range(2))
    history = [HISTORY[0], (make.attempt(2, genome=FAST), make.confirmation(2, samples=make.samples()))]
    with pytest.raises(ArchiveError, match="the search saw prompts of the confirmation: seen-0, seen-1"):
        build_export(make.run(), history, seen)


def test_a_run_with_another_form_of_deployment():
    with pytest.raises(ArchiveError, match="another form of deployment"):
        build_export(make.run(deployment="{}"), HISTORY, make.CONFIRM_PROMPTS)


def edited(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(knbos={}), "unknown key knbos; did you mean 'knobs'.\nKnown here: format, created"),
        (
            lambda c: c["deployment"]["workload"].update(max_token=1),
            "unknown key deployment.workload.max_token; did you mean 'max_tokens'",
        ),
        (
            lambda c: c["evidence"]["ar"].update(speed=1),
            "unknown key evidence.ar.speed.*\nKnown here: tokens_per_second",
        ),
        (lambda c: c["evidence"].pop("forced"), "key evidence.forced is missing"),
        (
            lambda c: c["evidence"]["forced"].update(tokens=0),
            "evidence.forced.tokens = 0: .*greater than or equal to 1",
        ),
        (lambda c: c["knobs"].update(threads=[]), "knobs.threads"),
        (lambda c: c["knobs"].update(draft_length=31), "these knobs are genome .*export again instead of editing"),
        (lambda c: c.update(format="specpilot-engine-2"), "format = 'specpilot-engine-2'; this program reads"),
        (lambda c: c.pop("format"), "format = None; this program reads"),
    ],
)
def test_documents_that_are_refused(path, edit, message):
    with pytest.raises(InputError, match=message) as caught:
        read_export(edited(path, edit))
    assert len(str(caught.value).splitlines()) <= 3
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n  "format": \n}', "not valid JSON: Expecting value at line 3, column 1"),
        (b"", "not valid JSON: Expecting value at line 1"),
        (b"\xff\xfe", "not a text file"),
        (b"[1]", "format = None"),
        (b"NaN", "format = None"),
    ],
)
def test_files_that_are_no_documents(tmp_path, content, message):
    (tmp_path / "e.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_export(tmp_path / "e.json")


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*No such file.*\nMake it with"):
        read_export(tmp_path / "none.json")


def test_a_full_disk_keeps_the_old_file(path, document, monkeypatch):
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveError, match="no space left to write .*engine.json"):
        write_export(path, document)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["engine.json"]


def test_a_place_that_cannot_be_written(tmp_path, document):
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="cannot use"):
        write_export(tmp_path / "file" / "e.json", document)


def test_the_exported_environment_has_the_fields_of_the_record():
    assert list(MeasuredOn.model_fields) == [field.name for field in fields(Environment)]
