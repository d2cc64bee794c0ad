"""Bad input: exit code 2, at most three lines on standard error, no traceback, and nothing lost."""

import errno
import os
import resource
import shutil
import signal
import sqlite3

import pytest
from commands import ROOT, is_polite
from tiny_deployment import write_deployment

from run import main


@pytest.fixture
def refused(monkeypatch, capsys):
    """Calls the program in this process, in a folder; returns what it complained about."""

    def call(place, *words):
        monkeypatch.chdir(place.folder)
        monkeypatch.setenv("SPECPILOT_HOME", str(place.folder))
        monkeypatch.setattr("autotune.environment.usable_cores", lambda: 1)
        monkeypatch.setattr("autotune.session.usable_cores", lambda: 1)
        capsys.readouterr()
        code = main(words)
        err = capsys.readouterr().err
        assert is_polite(code, err), (code, err)
        return err

    return call


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


TUNE = ("--deployment", "tiny.toml")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("max_context = 256", "max_context = = 256", "(at line 6, column 15)"),
        ("max_context = 256", "max_contxt = 256", "unknown key target.max_contxt; did you mean 'max_context'?"),
        (
            "max_context = 256",
            "max_context = 1",
            "target.max_context = 1: input should be greater than or equal to 128",
        ),
        ('device = "cpu"', 'device = "tpu"', "hardware.device = 'tpu'"),
        ("prompts.jsonl", "prompt.jsonl", "cannot read prompts"),
    ],
)
def test_a_deployment_that_cannot_be_read(place, refused, old, new, complaint):
    edit(place.toml, old, new)
    assert complaint in refused(place, *TUNE)
    assert not place.archive.exists()


def test_a_misspelt_deployment_and_unknown_knobs(place, refused):
    assert "did you mean 'cpu-smollm2'?" in refused(place, "--deployment", "cpu-smolm2")
    assert "cannot read" in refused(place, "--deployment", "nowhere.toml")
    assert "unknown knob 'draftlength'; did you mean 'draft_length'?" in refused(place, *TUNE, "--set", "draftlength=3")
    assert "a whole number from 1 to 32" in refused(place, *TUNE, "--set", "draft_length=99")
    assert not place.archive.exists()


def test_an_unreadable_model_is_refused_and_a_corrected_one_begins_anew(place, refused):
    good = str(place.checkpoint)
    edit(place.toml, good, "/nowhere")
    assert "target source '/nowhere' is not here" in refused(place, *TUNE)
    broken = place.folder / "broken"
    shutil.copytree(place.checkpoint, broken)
    (broken / "model.safetensors").write_bytes(b"no tensors")
    edit(place.toml, "/nowhere", str(broken))
    complaint = refused(place, *TUNE)
    assert "the engine cannot start" in complaint
    assert "broken/model.safetensors" in complaint
    edit(place.toml, str(broken), good)
    code, out, err = place.tune("--max-evals", "1")
    assert (code, err) == (0, ""), "the failed attempts do not stand in the way"


def test_a_prompt_that_does_not_fit(place, refused):
    edit(place.folder / "prompts.jsonl", "Tell me about rivers.", "a" * 300)
    assert "prompt 'chat-rivers' has" in refused(place, *TUNE)


@pytest.mark.parametrize(
    ("old", "new", "words", "difference"),
    [
        ("max_tokens = 24", "max_tokens = 16", (), "workload.max_tokens: 24 -> 16"),
        ("", "", ("--set", "draft_length=4"), "space.knobs.draft_length"),
        ("", "", ("--seed", "5"), "seed: 0 -> 5"),
    ],
)
def test_a_run_is_not_continued_with_something_else(copied, refused, old, new, words, difference):
    edit(copied.toml, old, new)
    before = copied.attempts()
    complaint = refused(copied, *TUNE, *words)
    assert "cannot be continued" in complaint
    assert difference in complaint
    assert "--fresh" in complaint
    assert copied.attempts() == before


def test_a_description_may_change(copied):
    edit(copied.toml, "a tiny model with random weights", "another text")
    assert copied.tune()[0] == 0


def test_an_archive_of_a_newer_version(copied, refused):
    with sqlite3.connect(copied.archive) as db:
        db.execute("PRAGMA user_version = 99")
    before = copied.archive.read_bytes()
    for words in (TUNE, ("archive", "list"), ("export", *TUNE, "--to", "engine")):
        assert "schema version 99" in refused(copied, *words)
    assert copied.archive.read_bytes() == before


def test_what_is_not_there_yet(place, refused, finished):
    assert "there is no archive at" in refused(place, "archive", "list")
    assert "there is no archive at" in refused(place, "export", *TUNE, "--to", "engine")
    assert "cannot read exports/tiny.json" in refused(place, "verify", "--config", "exports/tiny.json")
    done, _ = finished
    assert "zzz" in refused(done, "archive", "show", "zzz")
    other = write_deployment(place.folder, place.checkpoint, name="other")
    words = ("export", "--deployment", str(other), "--to", "engine", "--archive", str(done.archive))
    assert "the archive has no run of other" in refused(place, *words)


def test_an_edited_configuration(copied, refused):
    edit(copied.export, '"prefill_chunk":', '"refill_chunk":')
    for command in ("verify", "bench"):
        assert "export again instead of editing" in refused(copied, command, "--config", str(copied.export))


def test_real_processes_refuse_alike(place):
    for words in (("--deployment", "cpu-smolm2"), ("archive", "list")):
        code, out, err = place.call(*words, program=ROOT / "run.py")
        assert is_polite(code, err), err
        assert out == ""


def test_a_full_disk_for_the_export(copied, refused, monkeypatch):
    before = copied.export.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for words in (("export", *TUNE, "--to", "engine"), TUNE):
        assert "no space left to write exports/tiny.json" in refused(copied, *words)
        assert copied.export.read_bytes() == before
        assert [path.name for path in copied.export.parent.iterdir()] == ["tiny.json"]


def small_disk():
    """A limit on the size of a file stands for the disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (180_000, resource.RLIM_INFINITY))


def test_a_full_disk_for_the_archive(place):
    code, out, err = place.call(*TUNE, "--max-evals", "50", preexec_fn=small_disk)
    assert is_polite(code, err), (out[-2000:], err)
    assert "no space left" in err
    stored = place.finished()
    assert stored == list(range(1, len(stored) + 1))
    code, _, err = place.tune("--max-evals", str(len(stored) + 1))
    assert (code, err) == (0, ""), "with space again the same command continues"
    assert place.finished()[: len(stored)] == stored
