"""doctor --measure: what is written and told, with the measuring itself replaced by recorded figures."""

import json
from types import SimpleNamespace

import pytest

import run
from autotune import commands, doctor, measured
from autotune.calibrate import Calibration
from autotune.measured import Measured, measure_machine, measured_profile_path
from engine.protocol import Generated
from space.errors import InputError
from space.hardware import read_profile


@pytest.fixture
def profile(request):
    return read_profile(request.path.parent / "data" / "measured-cpu.toml")


def calibration(error):
    return Calibration(
        products=0.94,
        attention=1.02,
        operators=1.09,
        draft=2.32,
        verify_error=error,
        step_error=error,
        noise=error / 2,
        fitted=646,
        tested=453,
    )


def test_both_files_are_written(tmp_path, monkeypatch, profile):
    monkeypatch.setattr(measured, "measure_profile", lambda: profile)
    monkeypatch.setattr(measured, "step_logs", lambda *_: "a log")
    monkeypatch.setattr(measured, "calibrate", lambda model, log: calibration(0.067))
    said = []
    found = measure_machine(tmp_path / "home", said.append, with_model=True)
    assert len(said) == 2
    assert read_profile(measured_profile_path(tmp_path / "home")) == found.profile == profile
    written = json.loads(found.profile_path.with_name("calibration.json").read_text(encoding="utf-8"))
    assert written["step_error"] == 0.067
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*\nSet SPECPILOT_HOME"):
        measure_machine(tmp_path / "file", said.append, with_model=False)


@pytest.mark.parametrize(("error", "code", "mark"), [(0.067, 0, "ok"), (0.31, 1, "missing")])
def test_doctor_prints_the_error(tmp_path, monkeypatch, capsys, profile, error, code, mark):
    path = measured_profile_path(tmp_path)
    answer = Measured(profile=profile, profile_path=path, calibration=calibration(error))
    monkeypatch.setenv("SPECPILOT_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "memory_gib", lambda: 8.0)
    monkeypatch.setattr(commands, "measure_machine", lambda *_, **__: answer)
    assert run.main(["doctor", "--measure"]) == code
    out = capsys.readouterr().out
    assert "reads 27.9 GB/s, multiplies 0.93 TFLOP/s, 15.0 us a launch" in out
    assert f"{mark:<8}cost model" in out
    assert f"median absolute error {error:.1%} a step" in out
    assert f"AR's own steps spread by {error / 2:.1%}" in out
    assert "on 453 steps that the fit of 646 did not see" in out


def test_without_the_model_there_is_no_fit(profile, tmp_path):
    found = Measured(profile=profile, profile_path=tmp_path, calibration=None)
    told = {check.name: check.value for check in doctor.measured_checks(found)}
    assert "not fitted: the embedded model is not cached" in told["cost model"]
    assert told["rows"].endswith("32: 17.3, 64: 14.5")


def test_a_measured_profile_is_shown_by_every_doctor(tmp_path, monkeypatch, profile):
    monkeypatch.setenv("SPECPILOT_HOME", str(tmp_path))
    assert "not measured yet" in {c.name: c.value for c in doctor.checks()}["profile"]
    monkeypatch.setattr(measured, "measure_profile", lambda: profile)
    measure_machine(tmp_path, lambda text: None, with_model=False)
    assert "reads 27.9 GB/s" in {c.name: c.value for c in doctor.checks()}["profile"]


def test_step_logs_cover_every_setting_in_both_halves(monkeypatch):
    """Four settings on five prompts: the answers' numbers put each setting into the fit and into the test."""
    reply = Generated(
        tokens=(1, 2), finish="length", drafted=(0,), accepted=(0,), draft_seconds=(0.1,), verify_seconds=(0.2,)
    )
    prompts = [SimpleNamespace(tokens=(1,) * 10, id=str(i)) for i in range(5)]
    requests = SimpleNamespace(warm_up=lambda *_: None, candidate=lambda *_: SimpleNamespace(answer=reply), asked=[])

    class Session:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return SimpleNamespace(prepare=lambda _: prompts, requests=lambda: requests)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(measured, "Session", Session)
    records = measured.step_logs(measured.find_deployment(measured.STAND_IN), None, print)
    assert [record.answer for record in records] == list(range(20))
    assert all(record.load.context == 10.0 for record in records)
    for setting in range(4):
        assert {(5 * setting + i) % 2 for i in range(5)} == {0, 1}
