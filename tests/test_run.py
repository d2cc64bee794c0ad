"""The front door: what is typed becomes options, what cannot be read is answered in three lines, exit codes hold."""

import subprocess
import sys
from pathlib import Path

import pytest

import run
from autotune import options as opt
from space.errors import ArchiveError, InputError

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("line", "name", "options"),
    [
        ("--deployment a", "tune", opt.TuneOptions(deployment="a")),
        ("tune --deployment a --fresh", "tune", opt.TuneOptions(deployment="a", fresh=True)),
        (
            "--deployment=a --budget 1m30s --max-evals 7 --seed 3 --set x=1 --set y=b=c --dry-run --archive f",
            "tune",
            opt.TuneOptions(
                deployment="a",
                seconds=90,
                max_evals=7,
                seed=3,
                settings=(("x", "1"), ("y", "b=c")),
                dry_run=True,
                archive=Path("f"),
            ),
        ),
        (
            "export --deployment a --to engine --out b",
            "export",
            opt.ExportOptions(deployment="a", to="engine", out=Path("b")),
        ),
        ("archive list", "archive list", opt.ArchiveListOptions()),
        ("archive show abc --archive f", "archive show", opt.ArchiveShowOptions(id="abc", archive=Path("f"))),
        ("archive top --limit 3", "archive top", opt.ArchiveTopOptions(limit=3)),
        ("bench --config c", "bench", opt.BenchOptions(config=Path("c"))),
        ("verify --config c", "verify", opt.VerifyOptions(config=Path("c"))),
        (
            "verify --config c --benchmark gsm8k --benchmark-dir d",
            "verify",
            opt.VerifyOptions(config=Path("c"), benchmark="gsm8k", benchmark_dir=Path("d")),
        ),
        ("archive top --predicted", "archive top", opt.ArchiveTopOptions(predicted=True)),
        ("bench --config c --unsafe-no-sandbox", "bench", opt.BenchOptions(config=Path("c"), unsafe=True)),
        ("verify --config c --unsafe-no-sandbox", "verify", opt.VerifyOptions(config=Path("c"), unsafe=True)),
        ("--deployment a --unsafe-no-sandbox", "tune", opt.TuneOptions(deployment="a", unsafe=True)),
        ("doctor", "doctor", opt.DoctorOptions()),
        ("doctor --measure", "doctor", opt.DoctorOptions(measure=True)),
    ],
)
def test_a_command_line_becomes_options(line, name, options):
    assert run.read_command(line.split()) == (name, options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("exprot --to engine", "unknown command 'exprot'; did you mean 'export'"),
        ("archive shwo", "unknown command 'archive shwo'; did you mean 'archive show'"),
        ("archive", "archive needs one of: list, show ID, top"),
        ("zzz", r"unknown command 'zzz'\.\nCommands: tune, export"),
        ("--deploymnet a", "unknown option --deploymnet; did you mean '--deployment'"),
        ("--deployment a --budgte=3m", "unknown option --budgte; did you mean '--budget'"),
        ("--deployment a --max 3", "unknown option --max"),
        ("--fresh", "arguments are required: --deployment"),
        ("archive show", "arguments are required: ID"),
        ("--deployment a --budget soon", "--budget soon: not a duration; write 90s, 10m or 1h30m"),
        ("--deployment a --budget 0", "--budget 0: not a duration"),
        ("--deployment a --budget -5", "argument --budget: expected one argument|not a duration"),
        ("--deployment a --max-evals 0", "'0' is not a whole number above zero"),
        ("--deployment a --seed x", "argument --seed: 'x' is not a whole number from 0 to 999999999"),
        ("--deployment a --set x", "--set x: not name=value"),
        ("--deployment a --set =3", "--set =3: not name=value"),
        ("export --deployment a --to vllmm", "argument --to: invalid choice: 'vllmm'"),
        ("doctor now", "unrecognized arguments: now"),
        ("bench --acceptance --unsafe-no-sandbox", "unknown option --unsafe-no-sandbox"),
    ],
)
def test_what_cannot_be_read_is_answered(line, message):
    with pytest.raises(InputError, match=message) as caught:
        run.read_command(line.split())
    assert len(str(caught.value).splitlines()) <= 3


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5m", 90)])
def test_durations(text, seconds):
    assert opt.parse_duration(text) == seconds


def test_benchmarks_of_bench(tmp_path):
    for name in ("gsm8k", "mbpp"):
        (tmp_path / f"{name}.jsonl").write_text("{}", encoding="utf-8")
    files = (tmp_path / "gsm8k.jsonl", tmp_path / "mbpp.jsonl")
    words = ["--benchmark", "gsm8k", "mbpp", "--benchmark-dir", str(tmp_path)]
    _, options = run.read_command(["bench", "--acceptance", *words])
    assert options == opt.AcceptanceOptions(benchmark=("gsm8k", "mbpp"), benchmark_dir=tmp_path)
    with pytest.raises(InputError, match="unrecognized arguments: mbpp"):
        run.read_command(["bench", "--config", "c", *words])
    _, options = run.read_command(["bench", "--config", "c", "--benchmark", str(files[1])])
    assert options == opt.BenchOptions(config=Path("c"), benchmark=str(files[1]))


def handler(result):
    def _handle(options):
        if isinstance(result, BaseException):
            raise result
        return result

    return lambda name: _handle


@pytest.mark.parametrize(
    ("result", "code"),
    [(0, 0), (1, 1), (ArchiveError("locked"), 2), (InputError("bad"), 2), (KeyboardInterrupt(), 130)],
)
def test_exit_codes(monkeypatch, capsys, result, code):
    monkeypatch.setattr(run, "_handler", handler(result))
    assert run.main(["doctor"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (f"error: {result}\n" if code == 2 else "")


def test_a_bug_is_not_dressed_up_as_bad_input(monkeypatch):
    monkeypatch.setattr(run, "_handler", handler(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        run.main(["doctor"])


@pytest.mark.parametrize("words", [[], ["--help"], ["help"]])
def test_the_overview_names_every_command(capsys, words):
    assert run.main(words) == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out for name in run.COMMANDS)


def test_a_real_process_answers_bad_input_without_a_traceback_and_without_torch():
    code = "import sys, run; code = run.main(sys.argv[1:]); sys.exit(99 if 'torch' in sys.modules else code)"
    process = subprocess.run(
        [sys.executable, "-c", code, "exprot"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("error: unknown command 'exprot'; did you mean 'export'?\n")
    assert len(process.stderr.splitlines()) <= 3
