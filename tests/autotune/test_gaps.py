"""Gaps: each closing does what its ceiling says, the waterfall adds up, and the picture is a picture."""

import math
import sys
from dataclasses import replace

import pytest

from autotune.costmodel import CostModel, Load
from autotune.gaps import KINDS, ceiling_tau, gap_report
from autotune.overheads import IDEAL, STOCK_VLLM
from autotune.waterfall import Panel, bars, draw_waterfalls
from space.errors import InputError
from space.hardware import find_profile
from space.shapes import find_drafter, find_model

LOAD = Load(batch=8, nodes=9, context=300.0, committed=4.5, neural=True)


def model(system=STOCK_VLLM, hardware="h200"):
    return CostModel(
        hardware=find_profile(hardware),
        target=find_model("llama-3.1-8b"),
        drafter=find_drafter("dflash-llama-3.1-8b"),
        system=system,
    )


def gains(load=LOAD, ceiling=6.5, **options):
    return {gap.kind.name: gap.gain for gap in gap_report(model(**options), load, ceiling).gaps}


def test_every_gap_of_a_real_system_has_a_ceiling_above_it():
    found = gains()
    assert set(found) == set(KINDS)
    assert all(gain >= 1.0 for gain in found.values())
    assert found["acceptance"] == pytest.approx(6.5 / 4.5)
    assert {name for name, gain in found.items() if gain > 1.001} == set(KINDS) - {"padding"}  # 80 rows are captured


def test_what_is_closed_already_gains_nothing():
    found = gains(system=replace(IDEAL, weight_bytes=0.7), ceiling=2.0)
    closed = {"padding", "host", "kv", "bandwidth", "weights", "acceptance"}
    assert {name: found[name] for name in closed} == pytest.approx(dict.fromkeys(closed, 1.0))


def test_gaps_follow_the_load():
    alone, many = (gains(load=replace(LOAD, batch=batch)) for batch in (1, 32))
    assert many["waste"] > alone["waste"], "rows are nearly free at one request and are not at 32"
    assert alone["weights"] > many["weights"]
    assert alone["host"] > many["host"]
    assert gains(load=replace(LOAD, context=16000.0))["kv"] > gains()["kv"]
    assert gains()["padding"] == pytest.approx(1.0), "80 rows are a captured size"
    assert 1.0 < gains(load=replace(LOAD, batch=9))["padding"] < 1.02, "90 rows run as 96"


def test_the_waterfall_ends_at_the_roofline_and_never_rises():
    report = gap_report(model(), LOAD, 6.5)
    steps = [report.per_token, *(seconds for _, seconds in report.fall)]
    assert steps == sorted(steps, reverse=True)
    floor = model(replace(IDEAL, weight_bytes=12.05 / 16, logits_passes=2.0)).step(
        replace(LOAD, nodes=math.ceil(4.5) - 1, neural=False)
    )
    assert steps[-1] == pytest.approx(floor.total / (8 * 6.5), rel=1e-6)
    drawn = bars(report)
    assert drawn[0][2] - sum(height for _, _, height in drawn[1:-1]) == pytest.approx(drawn[-1][2])
    assert report.gaps[0].kind is report.dominant
    assert report.system == "stock-vllm"


def test_the_largest_gap_of_one_request_is_bytes_or_bandwidth_on_a_gaming_card():
    report = gap_report(model(hardware="rtx4090"), replace(LOAD, batch=1, committed=6.0), 6.5)
    assert report.dominant.name in ("weights", "bandwidth")
    assert report.dominant.axis == "weights"


def test_without_knowledge_of_alternatives_acceptance_is_no_gap():
    report = gap_report(model(), LOAD, None)
    assert "acceptance" not in {gap.kind.name for gap in report.gaps}
    assert len(report.fall) == len(KINDS) - 1


def test_ceiling_tau_is_the_expected_run_of_covered_tokens():
    assert ceiling_tau([]) == 1.0
    assert ceiling_tau([0.5, 0.5]) == 1 + 0.5 + 0.25
    assert ceiling_tau([1.0] * 7) == 8.0


def test_the_picture(tmp_path):
    panel = Panel(title="one request", report=gap_report(model(), LOAD, 6.5))
    path = tmp_path / "plots" / "gaps.png"
    draw_waterfalls(path, "predicted", [[panel, panel], [panel, panel]])
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(InputError, match="cannot write the plot"):
        draw_waterfalls(path / "below-a-file.png", "predicted", [[panel]])


def test_no_picture_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"matplotlib is not installed; pip install -e '\.\[plot\]'"):
        draw_waterfalls(tmp_path / "gaps.png", "predicted", [])
