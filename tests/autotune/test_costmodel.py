"""The cost model: against figures measured in vLLM on an H200, and the directions in which it must move."""

from dataclasses import replace

import numpy as np
import pytest

from autotune.costmodel import PARTS, CostModel, Load
from autotune.overheads import ENGINE_CPU, IDEAL, STOCK_VLLM, on_curve
from space.hardware import find_profile, read_profile
from space.shapes import find_drafter, find_model

# Tokens a second by (batch, drafted tokens) in vLLM 0.23.0 on one H200: dummy weights of the Llama-3.1-8B shape, a
# DFlash drafter with FFN 14336, synthetic acceptance of 4.5 tokens a step, 128 prompt and 256 new tokens.
MEASURED = {
    (1, 0): 201.8,
    (8, 0): 1529.9,
    (32, 0): 5357.0,
    (64, 0): 9307.9,
    (1, 9): 683.9,
    (8, 9): 4373.2,
    (32, 9): 10230.7,
}
FITTED_ON = ((1, 0), (64, 0), (1, 9))
HELD_OUT = tuple(case for case in MEASURED if case not in FITTED_ON)


def anchor(system=STOCK_VLLM):
    drafter = replace(find_drafter("dflash-llama-3.1-8b"), ffn=14336)
    return CostModel(hardware=find_profile("h200"), target=find_model("llama-3.1-8b"), drafter=drafter, system=system)


def predicted(case, system=STOCK_VLLM):
    batch, nodes = case
    seconds = anchor(system).run(batch=batch, prompt=128, tokens=256, nodes=nodes, tau=4.5 if nodes else 1.0)
    return 256 * batch / seconds


@pytest.mark.parametrize("case", HELD_OUT)
def test_what_the_fit_did_not_see_is_within_fifteen_percent(case):
    assert predicted(case) == pytest.approx(MEASURED[case], rel=0.15)


def test_the_three_fitted_constants_are_what_the_three_figures_say():
    """Newton's method on the three figures from constants that are off gives the shipped ones."""
    start = np.array([1.0, 10e-6, 0.6e-3])
    widths = np.array([1e-3, 1e-8, 1e-6])

    def misses(constants):
        launch, row, speculation = map(float, constants)
        system = replace(
            STOCK_VLLM, matrix_launch=launch, small_launch=launch, host_row=row, speculation_host=speculation
        )
        return np.array([1 / predicted(case, system) - 1 / MEASURED[case] for case in FITTED_ON])

    for _ in range(6):
        here = misses(start)
        slopes = np.array([(misses(start + np.eye(3)[i] * widths[i]) - here) / widths[i] for i in range(3)]).T
        start = start - np.linalg.solve(slopes, here)
    shipped = [STOCK_VLLM.matrix_launch, STOCK_VLLM.host_row, STOCK_VLLM.speculation_host]
    assert shipped == pytest.approx(list(start), rel=0.01)
    assert STOCK_VLLM.small_launch == STOCK_VLLM.matrix_launch


def test_the_bare_roofline_is_bytes_over_bandwidth():
    step = anchor(IDEAL).step(Load(batch=1, nodes=0, context=0))
    assert step.total == pytest.approx(15.01e9 / 4.8e12, rel=0.002)
    assert (step.launch, step.host, step.draft) == (0, 0, 0)


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_more_work_never_costs_less(batch):
    model = anchor()
    loads = [Load(batch=batch, nodes=nodes, context=512.0, committed=2.0, neural=True) for nodes in (1, 4, 9)]
    totals = [model.step(load).total for load in loads]
    assert totals == sorted(totals)
    assert model.step(replace(loads[0], context=8192.0)).attention > 10 * model.step(loads[0]).attention
    assert model.step(replace(loads[0], batch=2 * batch)).total > totals[0]


def test_parts_add_up_and_a_text_draft_costs_the_device_nothing():
    load = Load(batch=4, nodes=6, context=256.0, committed=2.0)
    text, neural = anchor().step(load), anchor().step(replace(load, neural=True))
    assert text.total == pytest.approx(sum(getattr(text, part) for part in PARTS))
    assert text.draft == 0 < neural.draft
    assert text.launch < neural.launch
    assert text.host == neural.host > anchor().step(replace(load, nodes=0)).host


def test_twelve_bits_save_a_quarter_of_the_weights_where_bytes_decide():
    bf16, packed = anchor(IDEAL), anchor(replace(IDEAL, weight_bytes=0.75))
    load = Load(batch=1, nodes=0, context=0)
    assert packed.step(load).total == pytest.approx(0.75 * bf16.step(load).total, rel=1e-3)
    assert packed.memory(1, 1000) < bf16.memory(1, 1000)


def test_rows_are_filled_up_to_the_captured_sizes():
    assert [STOCK_VLLM.padded(rows) for rows in (1, 3, 5, 250, 257, 512, 640)] == [1, 4, 8, 256, 272, 512, 640]
    assert IDEAL.padded(5) == 5
    model = anchor()
    odd, even = (Load(batch=9, nodes=nodes, context=10.0) for nodes in (8, 7))
    assert model.step(odd).weights == pytest.approx(model._product(model.target.body_parameters, 88))
    assert model.step(even).weights == pytest.approx(model._product(model.target.body_parameters, 72))


def test_halves_hide_the_draft_and_read_the_weights_twice():
    whole, halves = anchor(), anchor(replace(STOCK_VLLM, halves=True))
    load = Load(batch=32, nodes=9, context=256.0, committed=4.5, neural=True)
    assert halves.step(load).draft < whole.step(load).draft
    assert halves.step(load).launch == pytest.approx(2 * whole.step(load).launch)
    single = replace(load, batch=1)
    assert halves.step(single) == whole.step(single)


def test_a_recurrent_state_is_read_once_a_request():
    hybrid = CostModel(hardware=find_profile("h200"), target=find_model("qwen3.5-9b"), drafter=None, system=STOCK_VLLM)
    short, long = (hybrid.step(Load(batch=8, nodes=0, context=context)).attention for context in (1.0, 1000.0))
    assert short > 8 * 2 * hybrid.target.state_bytes / 4.8e12
    assert long > short
    assert hybrid.step(Load(batch=8, nodes=3, context=1.0, neural=True)).draft == 0


def test_a_measured_profile_prices_rows_by_its_curve(request):
    profile = read_profile(request.path.parent / "data" / "measured-cpu.toml")
    model = CostModel(hardware=profile, target=find_model("smollm2-135m"), drafter=None, system=ENGINE_CPU)
    one, many = (model.step(Load(batch=1, nodes=nodes, context=50.0)) for nodes in (0, 63))
    assert one.weights == pytest.approx(2 * model.target.body_parameters / 21791038037.995247)
    assert many.weights == pytest.approx(2 * model.target.body_parameters / 14456848234.087826)


def test_a_curve_is_read_between_its_points():
    curve = ((1, 0.7), (3, 0.9), (5, 1.1))
    assert [on_curve(curve, rows) for rows in (0, 1, 2, 3, 4, 9)] == pytest.approx([0.7, 0.7, 0.8, 0.9, 1.0, 1.1])
