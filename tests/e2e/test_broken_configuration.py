"""verify and bench with a candidate process that cheats: they say so, and end with 1."""

from functools import partial

import pytest
from commands import ROOT

from autotune import check
from autotune.session import Session
from run import main


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_configuration_whose_tokens_are_not_stocks(finished, monkeypatch, capsys, command):
    place, _ = finished
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "adversarial"))
    monkeypatch.setattr("autotune.session.usable_cores", lambda: 1)
    monkeypatch.setattr(check, "Session", partial(Session, worker_module="cheat_repeats_last_token"))
    assert main([command, "--config", str(place.export)]) == 1
    out = capsys.readouterr().out
    assert "NOT equal to stock" in out
    assert "first mismatch: prompt chat-" in out
    assert "x AR" not in out, "no speed is told for tokens that are wrong"
