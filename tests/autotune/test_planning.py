"""The planning job from the command line on, with a stand-in that needs no model."""

import json
import re

import pytest
import torch
from planned_fakes import FakeSession, FakeStandIn
from tiny_deployment import write_deployment

import run
from archive.base import Basis
from archive.queries import list_runs
from archive.store import Archive
from autotune import planning, readiness
from autotune.ablation import Worth
from autotune.planning import acceptance_headroom
from engine.drafters.dflash import DFlash, DFlashConfig
from engine.drafters.dflash_files import save_drafter
from engine.weights.source import BUNDLED_DRAFTER, drafter_folder
from space.deployment import SHIPPED, find_deployment, shipped_names
from space.errors import InputError

WORDS = ("--deployment", "rtx4090-llama", "--max-evals", "90", "--budget", "60s")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in; `place.made` are the stand-ins that were started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPILOT_HOME", str(tmp_path / "home"))
    made = []
    monkeypatch.setattr(planning, "Session", FakeSession)
    monkeypatch.setattr(planning, "StandIn", lambda *_: made.append(FakeStandIn()) or made[-1])
    return made


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "home" / "archive.sqlite"


def test_the_whole_job(place, capsys, tmp_path, archive):
    assert run.main(list(WORDS)) == 0
    out = capsys.readouterr().out
    assert "planning mode: every speed below is PREDICTED" in out
    assert "PREDICTED for NVIDIA GeForce RTX 4090" in out
    for regime in ("1 request", "8 requests", "32 requests"):
        assert re.search(rf"^{regime} +[\d.]+ +[\d.]+ +[\d.]+ +\d+\.\d+x +\d+\.\d+x +\d\.\d+ +75 of 75$", out, re.M)
        assert f"gaps at {regime} (predicted)" in out
        assert f"chosen at {regime} (predicted)" in out
    evaluations = re.findall(r"^predicted +\d+ ok .*$", out, re.M)
    assert len(evaluations) >= 90
    assert not re.search(r"^ +\d+ ok ", out, re.M), "every line of an evaluation says that it is predicted"
    assert "weights packed losslessly to 12 bits" in out
    assert "to measure instead, this is missing:" in out
    assert len(place) == 1, "one stand-in for all regimes"
    assert (tmp_path / "exports" / "rtx4090-llama-gaps.png").read_bytes()[:4] == b"\x89PNG"
    with Archive.open(archive, read_only=True) as stored:
        runs = list_runs(stored)
        assert {(r.deployment_name, r.basis) for r in runs} == {
            (f"rtx4090-llama.b{regime}", Basis.PREDICTED) for regime in (1, 8, 32)
        }
        assert stored.latest_run("rtx4090-llama.b1") is None


def test_the_best_beats_stock_in_every_regime(place, capsys):
    assert run.main(list(WORDS)) == 0
    found = re.findall(r"^\d+ requests? .* (\d+\.\d+)x +(\d+\.\d+)x ", capsys.readouterr().out, re.M)
    assert len(found) == 3
    assert all(float(stock) > 1.1 for _, stock in found)


def test_the_same_command_continues_and_tells_the_same(place, capsys):
    assert run.main(list(WORDS)) == 0
    first = capsys.readouterr().out
    assert run.main(list(WORDS)) == 0
    again = capsys.readouterr().out
    assert "continues after" in again
    assert "predicted    1 ok" not in again
    chosen = [line for line in first.splitlines() if line.startswith("chosen at")]
    assert chosen == [line for line in again.splitlines() if line.startswith("chosen at")]
    assert len(place) == 1, "nothing was left to decode"
    assert run.main([*WORDS, "--seed", "1"]) == 2
    assert "cannot be continued: seed: 0 -> 1" in capsys.readouterr().err


def test_predicted_results_are_shown_apart_and_never_exported(place, capsys):
    run.main(list(WORDS))
    capsys.readouterr()
    assert run.main(["archive", "top"]) == 0
    assert "no evaluation is ok yet" in capsys.readouterr().out
    assert run.main(["archive", "top", "--predicted", "--deployment", "rtx4090-llama.b8"]) == 0
    assert "rtx4090-llama.b8" in capsys.readouterr().out
    assert run.main(["export", "--deployment", "rtx4090-llama", "--to", "engine"]) == 2
    assert "the archive has no run of rtx4090-llama" in capsys.readouterr().err
    assert run.main(["archive", "list"]) == 0
    assert capsys.readouterr().out.count(" predicted ") == 3


def test_what_choices_are_worth_is_told(place, capsys, monkeypatch):
    worth = Worth(name="weight_path", value="w12-skinny", default="bf16-library", gain=0.214, noise=0.0)
    monkeypatch.setattr(planning, "worths", lambda *_: (worth,))
    assert run.main([*WORDS[:2], "--max-evals", "27", "--budget", "60s"]) == 0
    assert capsys.readouterr().out.count("  weight_path = w12-skinny: faster by 21.4% (predicted)") == 3


def test_a_held_knob_and_a_dry_run(place, capsys, archive):
    assert run.main([*WORDS, "--set", "weight_path=bf16-skinny", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "weight_path" in out
    assert "one of bf16-skinny, default bf16-skinny" in out
    assert not archive.exists()
    assert place == []
    assert run.main([*WORDS, "--set", "weight_pth=x"]) == 2
    assert "unknown knob 'weight_pth'; did you mean 'weight_path'" in capsys.readouterr().err


def test_without_matplotlib_the_plan_says_what_is_missing(place, capsys, monkeypatch):
    def absent(*_):
        raise InputError("no plot: matplotlib is not installed; pip install -e '.[plot]'")

    monkeypatch.setattr(planning, "draw_waterfalls", absent)
    assert run.main(list(WORDS)) == 0
    out = capsys.readouterr().out
    assert "no plot: matplotlib is not installed" in out
    assert "waterfalls before and after" not in out


def test_what_does_not_fit_the_device_is_refused(place, capsys, tmp_path):
    text = (SHIPPED / "rtx4090-llama.toml").read_text(encoding="utf-8")
    path = tmp_path / "big.toml"
    path.write_text(text.replace("[1, 8, 32]", "[1, 8, 256]"), encoding="utf-8")
    assert run.main(["--deployment", str(path)]) == 2
    assert "256 requests of 560 tokens need" in capsys.readouterr().err


def test_what_measuring_would_need(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    deployment = find_deployment("rtx4090-llama")
    lines = readiness.missing(deployment, tmp_path / "no-device")
    assert lines[0].startswith("a GPU: NVIDIA GeForce RTX 4090")
    assert "weights of meta-llama/Llama-3.1-8B-Instruct: put a checkpoint folder anywhere" in lines[1]
    assert "as drafter.source" in lines[2]
    for name in ("meta-llama--Llama-3.1-8B-Instruct", "z-lab--LLaMA3.1-8B-Instruct-DFlash-UltraChat"):
        (tmp_path / "hub" / f"models--{name}" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "device").touch()
    assert len(readiness.missing(deployment, tmp_path / "device")) == 1, "the engine for it"


def test_the_headroom_of_a_drafter_comes_from_its_training_record(tmp_path):
    assert 1.2 < acceptance_headroom(drafter_folder(BUNDLED_DRAFTER)) < 2.0
    assert acceptance_headroom(tmp_path) is None
    record = tmp_path / "training.json"
    record.write_text('{"evaluation": {"a": {"tau": 3}}}', encoding="utf-8")
    assert acceptance_headroom(tmp_path) is None
    record.write_text('{"evaluation": {"a": {"coverage": [[0.5], [0.7], [1.0]]}}}', encoding="utf-8")
    assert acceptance_headroom(tmp_path) == pytest.approx(2.0 / 1.5)


def test_mechanisms_come_first_and_cost_no_decode(place, capsys):
    assert run.main([*WORDS[:2], "--max-evals", "30", "--budget", "60s"]) == 0
    out = capsys.readouterr().out
    lines = re.findall(r"^predicted +\d+ ok .* seed +.*evals? +(.*)$", out, re.M)
    assert lines[0].endswith("same knobs")
    assert lines[1] == "* weight_path bf16-library->w12-skinny"
    assert "drafter" not in " ".join(lines[:8])
    assert re.search(r"^predicted +9 ok .* union ", out, re.M), "then those that helped, together"


def test_a_benchmark_replaces_the_prompts(place, capsys, tmp_path, archive):
    lines = [f'{{"question": "How many are {i} and 1?", "answer": "{i + 1}"}}\n' for i in range(10)]
    (tmp_path / "gsm8k.jsonl").write_text("".join(lines), encoding="utf-8")
    named = ("--benchmark", "gsm8k", "--benchmark-dir", str(tmp_path))
    assert run.main([*WORDS, *named]) == 0
    with Archive.open(archive, read_only=True) as stored:
        workload = json.loads(stored.latest_run("rtx4090-llama.b1", Basis.PREDICTED).deployment)["workload"]
    assert workload["prompts"] == str(tmp_path / "gsm8k.jsonl")
    assert (workload["search_per_group"], workload["confirm_per_group"]) == (5, 5)
    assert run.main([*WORDS, "--benchmark", "mbpp", "--benchmark-dir", str(tmp_path)]) == 2
    assert "has no mbpp.jsonl; it has gsm8k.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in shipped_names() if not name.startswith("cpu-")])
def test_every_shipped_gpu_deployment_can_be_planned(place, capsys, name):
    assert run.main(["--deployment", name, "--max-evals", "27", "--budget", "60s"]) == 0
    out = capsys.readouterr().out
    found = re.findall(r"^\d+ requests? .* (\d+\.\d+)x +(\d+\.\d+)x ", out, re.M)
    assert len(found) == 3
    assert float(found[0][1]) > 1.2, "mechanisms alone beat stock at one request"


def test_ctrl_c_ends_the_plan_and_the_same_command_continues(place, capsys, monkeypatch):
    monkeypatch.setattr(planning.StopFlag, "__call__", lambda self: len(place) > 0)
    assert run.main(list(WORDS)) == 130
    assert "stopped before every regime was confirmed; the same command continues" in capsys.readouterr().out
    monkeypatch.undo()


def write_tiny_pair(folder, checkpoint):
    """A deployment of the tiny checkpoint and a random DFlash drafter that fits it."""
    torch.manual_seed(0)
    config = DFlashConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=258,
        num_target_layers=2,
        target_layer_ids=(0,),
        block_size=8,
        markov_rank=8,
    )
    (folder / "drafter").mkdir()
    save_drafter(DFlash(config).to(torch.bfloat16).eval(), folder / "drafter")
    path = write_deployment(folder, checkpoint, max_tokens=12)
    with path.open("a", encoding="utf-8") as file:
        file.write(f'[drafter]\nsource = "{folder / "drafter"}"\n')
    return find_deployment(str(path))


def test_a_real_pair_is_decoded_and_forced(tmp_path, monkeypatch, capsys, tiny_checkpoint):
    """The whole job with workers: a tiny target and a drafter stand in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPILOT_HOME", str(tmp_path))
    pair = write_tiny_pair(tmp_path, tiny_checkpoint)
    monkeypatch.setattr(planning, "stand_in_deployment", lambda _: pair)
    text = (SHIPPED / "h200-llama.toml").read_text(encoding="utf-8")
    for old, new in (
        ('"shipped"', f'"{pair.workload.prompts}"'),
        ("[1, 8, 32]", "[8]"),
        ("[1.0, 1.0, 1.0]", "[1.0]"),
        ("= 48", "= 12"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "planned.toml"
    path.write_text(text, encoding="utf-8")
    code = run.main(["--deployment", str(path), "--max-evals", "14", "--budget", "60s"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), out
    assert "noise of stock against itself" in out
    assert re.search(r"^8 requests .* (\d+) of \1$", out, re.M), "every token was forced"
    assert re.search(r"^predicted +\d+ ok .*drafter dflash->(ngram|suffix)", out, re.M)
