"""The whole job in real processes: tune, export, verify, bench, look at the archive, and repeat."""

import json
import os
import re
import time

from commands import ROOT, printed_numbers

from run import main


def test_the_main_job_searches_confirms_tells_and_exports(finished):
    place, out = finished
    assert re.search(r"deployment  tiny: a tiny model with random weights \([0-9a-f]{12}\)", out)
    assert "budget      2m00s, 6 evaluations" in out
    assert "noise of stock against itself: " in out
    numbers = printed_numbers(out)
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(re.findall(r" confirm  ", out)) == len(numbers) - 6 >= 1
    for name in ("AR ", "stock ", "best "):
        assert re.search(rf"^{name}", out, re.MULTILINE), name
    forced = int(re.search(r"^best .* (\d+) of \1$", out, re.MULTILINE)[1])
    document = json.loads(place.export.read_text(encoding="utf-8"))
    assert document["evidence"]["forced"]["tokens"] == forced
    assert document["evidence"]["genome_id"] == re.search(r"^best: (\w+)", out, re.MULTILINE)[1]
    assert f"evaluations: {len(numbers)} in " in out
    assert "python run.py verify --config exports/tiny.json" in out
    assert place.finished() == numbers


def test_a_finished_run_repeats_its_result_without_an_engine(finished):
    place, first = finished
    checkpoint = place.checkpoint / "model.safetensors"
    hidden = checkpoint.rename(checkpoint.with_suffix(".hidden"))
    try:
        started = time.monotonic()
        code, out, err = place.tune()
        seconds = time.monotonic() - started
    finally:
        hidden.rename(checkpoint)
    assert (code, err) == (0, "")
    assert printed_numbers(out) == []
    assert "starting the engine" not in out
    assert "(continues after" in out
    assert out[out.index("tiny, confirmed on") :] == first[first.index("tiny, confirmed on") :]
    assert seconds < 30


def test_export_writes_what_the_main_job_exported(finished):
    place, _ = finished
    code, out, err = place.call("export", "--deployment", "tiny.toml", "--to", "engine", "--out", "again.json")
    assert (code, err) == (0, "")
    assert "for the engine to again.json" in out
    first, again = (
        json.loads(path.read_text(encoding="utf-8")) for path in (place.export, place.folder / "again.json")
    )
    assert {**again, "created": ""} == {**first, "created": ""}


def test_verify_on_a_benchmark(finished, tmp_path):
    place, _ = finished
    lines = [f'{{"question": "What is {i} and 1?", "answer": "{i + 1}"}}\n' for i in range(3)]
    (tmp_path / "gsm8k.jsonl").write_text("".join(lines), encoding="utf-8")
    words = ("verify", "--config", "exports/tiny.json", "--benchmark", "gsm8k", "--benchmark-dir")
    code, out, err = place.call(*words, str(tmp_path))
    assert (code, err) == (0, "")
    assert "tokens forced on 3 prompts that the search never saw: equal to stock" in out
    code, _, err = place.call(*words, str(tmp_path / "absent"))
    assert code == 2
    assert "cannot read the benchmark folder" in err


def test_verify_forces_every_token_on_unseen_prompts(finished):
    place, _ = finished
    code, out, err = place.call("verify", "--config", "exports/tiny.json")
    assert (code, err) == (0, "")
    found = re.search(r"(\d+) of \1 tokens forced on 12 prompts that the search never saw: equal to stock", out)
    assert int(found[1]) == 12 * 24


def test_bench_measures_all_three_by_group(finished):
    place, _ = finished
    code, out, err = place.call("bench", "--config", "exports/tiny.json")
    assert (code, err) == (0, "")
    for name in ("AR", "stock", "best", "chat", "code", "maths", "extraction"):
        assert re.search(rf"^{name} .*\d", out, re.MULTILINE), name


def test_the_archive_can_be_listed_and_shown(finished, monkeypatch, capsys):
    place, out = finished
    monkeypatch.setenv("SPECPILOT_HOME", str(place.folder))

    def told(*words):
        assert main(["archive", *words]) == 0
        return capsys.readouterr().out

    run = re.search(r"^([0-9a-f]{8}) +tiny ", told("list"), re.MULTILINE)[1]
    best = re.search(r"^best: (\w+)", out, re.MULTILINE)[1]
    assert best in told("top")
    assert f"run {run}" in told("show", run[:4])
    assert f"genome {best}" in told("show", best)
    number = re.search(r"^ +(\d+) ok ", out, re.MULTILINE)[1]  # on a noisy machine the first ones may be unstable
    attempt = told("show", f"{run}/{number}")
    assert f"{run}/{number}: ok" in attempt
    assert re.search(r"^chat-rivers +candidate ", attempt, re.MULTILINE), "an attempt shows its raw samples"


def test_a_dry_run_starts_nothing(place):
    code, out, err = place.call("--deployment", "tiny.toml", "--dry-run", program=ROOT / "run.py")
    assert (code, err) == (0, "")
    assert "draft_length" in out
    assert sorted(path.name for path in place.folder.iterdir()) == ["prompts.jsonl", "tiny.toml"]


def test_fresh_starts_anew_and_keeps_what_was(copied):
    before = copied.attempts()
    code, out, _ = copied.tune("--fresh", "--max-evals", "1", "--set", "drafter=none")
    assert code == 0
    assert printed_numbers(out) == [1, 2]
    after = copied.attempts()
    assert after[: len(before)] == before
    assert {run for run, _, _ in after[len(before) :]}.isdisjoint({run for run, _, _ in before})
    code, out, _ = copied.tune("--max-evals", "1", "--set", "drafter=none")
    assert (code, printed_numbers(out)) == (0, []), "the newest run is the one that continues"


def on_one_core():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def test_the_first_run_works_through_run_py_itself(place):
    """Here the noise limit is what it is: the result is either confirmed (0) or honestly not (1)."""
    words = ("--deployment", "tiny.toml", "--max-evals", "1")
    code, out, err = place.call(*words, program=ROOT / "run.py", preexec_fn=on_one_core)
    assert err == ""
    assert (code == 0) == place.export.exists()
    assert code in (0, 1)
    assert ("exported to exports/tiny.json" if code == 0 else "nothing to export: no candidate was confirmed") in out
