import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.drafters.dflash_files import load_drafter
from engine.drafters.train.__main__ import parse
from engine.drafters.train.corpus import Corpus, Tapped
from engine.drafters.train.curves import draw_curves
from engine.drafters.train.options import TrainOptions
from engine.drafters.train.target_files import load_target
from engine.drafters.train.trainer import Trainer
from space.errors import InputError
from tests.engine.drafters import tiny

CPU = torch.device("cpu")
FLAGS = "--prompts 40 --turn-tokens 6 --answer-tokens 16 --slots 32 --held 8 --chunks 2 --layers 1 --taps 0,2 --block 4"
FLAGS += " --markov-rank 8 --texts 8 --anchors 8 --steps 100 --muon-rate 0.02 --evaluate-prompts 2 --device cpu"
FLAGS += " --draft-vocabulary 100"


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_tiny_target(tmp_path_factory.mktemp("target"), tiny.chained_weights())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine.drafters.train", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_one_command_trains_measures_and_refuses(target_folder: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "questions.jsonl", tmp_path / "out"
    prompts.write_text('{"turns": ["How far is it?"]}\n{"turns": ["Who knows?"]}\n')
    arguments = ["--target", str(target_folder), "--out", str(out), *FLAGS.split(), "--evaluate", str(prompts)]
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "training.json").read_text())
    assert record["evaluation"]["questions"]["tau"] > 2.5  # 4 is the most; untrained it is 1
    assert record["steps"] == 100
    assert record["answer_tokens"] > 100
    assert record["options"]["seed"] == 0
    chunks = [(out / f"corpus-{i}.safetensors").read_bytes() for i in (0, 1)]
    assert chunks[0] != chunks[1]
    assert str(prompts) in record["command"]
    model = load_drafter(out)
    assert sum(p.numel() for p in model.parameters()) == record["parameters"]
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [r["held_tau"] for r in logged if "held_tau" in r][-1] > 2.5
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    refused = run(*arguments, "--seeds", str(prompts))
    assert refused.returncode == 2
    assert "is the evaluation set" in refused.stdout
    refused = run(*arguments, "--texts", "4")
    assert refused.returncode == 2
    assert "holds a run with texts 8, this one has 4" in refused.stdout


def test_curves_need_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw_curves(tmp_path)
    assert not (tmp_path / "curves.png").exists()


def make_trainer(target_folder: Path, folder: Path) -> tuple[Trainer, Tapped]:
    target, chat = load_target(target_folder, CPU)
    options = TrainOptions(
        layers=1,
        taps=(0, 2),
        block=4,
        markov_rank=8,
        texts=4,
        anchors=4,
        steps=10,
        muon_rate=0.02,
        held=2,
        draft_vocabulary=20,
    )
    texts = [[i, 20 + i, 3, 7, i] for i in range(12)]
    corpus = Corpus.from_texts([chat.prompt("x")] * 12, texts, CPU)
    text, held = (Tapped(part, target, options.taps) for part in corpus.split(2))
    folder.mkdir(exist_ok=True)
    drafted = text.corpus.frequent(options.draft_vocabulary, target.config.vocab_size)
    return Trainer(options, target, held, corpus.width, drafted, folder), text


def test_stopped_and_resumed_equals_uninterrupted(target_folder: Path, tmp_path: Path) -> None:
    whole, text = make_trainer(target_folder, tmp_path / "whole")
    whole.train(text)
    make_trainer(target_folder, tmp_path / "parts")[0].train(text, stop_at=0.5)
    second, _ = make_trainer(target_folder, tmp_path / "parts")
    assert second.step == 5
    second.train(text)
    for (name, a), b in zip(whole.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    start = make_trainer(target_folder, tmp_path / "fresh")[0].model
    assert not torch.equal(start.fc.weight, whole.model.fc.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "--layers 0 must be 1 or more"),
        ({"steps": -1}, "--steps -1 must be 0 or more"),
        ({"head_dropout": 1.0}, "--head-dropout 1.0 must be at least 0 and below 1"),
        ({"seconds": 0.0}, "--seconds 0.0 must be above 0"),
    ],
)
def test_bad_options_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TrainOptions(), **change)


def test_command_line_reads_every_option() -> None:
    options, places, device = parse(["--target", "a", "--out", "b", "--taps", "1,3", "--seconds", "9", "--seed", "4"])
    assert (options.taps, options.seconds, options.seed) == ((1, 3), 9.0, 4)
    assert (places.target, places.seeds, places.per_set) == (Path("a"), None, 20)
    assert device.type in ("cpu", "cuda")
    with pytest.raises(InputError, match="--device 'tpu'"):
        parse(["--target", "a", "--out", "b", "--device", "tpu"])
