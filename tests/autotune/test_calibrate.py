"""Calibration on real step logs: the error on answers that the fit did not see, and what disturbs a fit."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from autotune.calibrate import calibrate, fastest, records_of
from autotune.measured import engine_layers, stand_in_model
from engine.protocol import Generated
from space.errors import InputError
from space.hardware import read_profile
from space.shapes import find_model


@pytest.fixture(scope="module")
def model(request):
    return stand_in_model(read_profile(request.path.parent / "data" / "measured-cpu.toml"))


@pytest.fixture(scope="module")
def records(request):
    text = (request.path.parent / "data" / "step_logs.json").read_text(encoding="utf-8")
    found = []
    for number, answer in enumerate(json.loads(text)["answers"]):
        drafted, accepted, draft, verify = zip(*answer["steps"], strict=True)
        log = SimpleNamespace(
            drafted=drafted,
            accepted=accepted,
            draft_seconds=[us * 1e-6 for us in draft],
            verify_seconds=[us * 1e-6 for us in verify],
        )
        found += records_of(number, answer["prompt"], log, neural=answer["drafter"] == "dflash")
    return found


def test_the_error_on_unseen_answers_is_below_ten_percent(model, records):
    found = calibrate(model, records)
    assert found.step_error < 0.10
    assert found.verify_error < 0.10
    assert found.fitted + found.tested == len(records)
    assert min(found.products, found.operators, found.draft) > 0
    assert 0.0 < found.noise < 0.10


def test_the_error_is_worth_printing(model, records):
    """A log whose unseen answers took twice as long shows an error of about one half."""
    slower = [
        replace(r, verify_seconds=2 * r.verify_seconds, draft_seconds=2 * r.draft_seconds) if r.answer % 2 else r
        for r in records
    ]
    assert calibrate(model, slower).step_error == pytest.approx(0.5, abs=0.08)


def test_known_scales_are_found(model, records):
    made = []
    for record in records:
        step = model.step(record.load)
        products = step.weights + step.head + step.sampling
        verify = 1.4 * products + 0.7 * step.attention + 0.9 * model.target_launch
        draft = 2.5 * (step.draft + step.launch - model.target_launch)
        made.append(replace(record, verify_seconds=verify, draft_seconds=draft))
    found = calibrate(model, made)
    assert found.draft == pytest.approx(2.5, rel=0.02)
    assert found.step_error < 0.02
    assert found.products > 1.1


def test_a_busy_machine_does_not_move_the_fit(model, records):
    quiet = calibrate(model, records)
    busy = [replace(r, verify_seconds=20 * r.verify_seconds) if i % 4 == 0 else r for i, r in enumerate(records)]
    found = calibrate(model, busy)
    assert found.products == pytest.approx(quiet.products, rel=0.1)
    assert found.operators == pytest.approx(quiet.operators, rel=0.1)


def test_noise_is_the_spread_of_steps_without_a_draft(model, records):
    even = [replace(r, verify_seconds=0.02) for r in records]
    assert calibrate(model, even).noise == 0.0
    uneven = [replace(r, verify_seconds=0.02 * (1.0 + 0.3 * (i % 3))) for i, r in enumerate(records)]
    assert calibrate(model, uneven).noise == pytest.approx(1.4826 * 0.3 / 1.3, rel=0.01)


def test_a_log_without_a_neural_drafter_says_nothing_about_drafting(model, records):
    assert calibrate(model, [record for record in records if not record.load.neural]).draft == 1.0


def test_a_short_log_is_refused(model, records):
    with pytest.raises(InputError, match="are too few; log at least 40 each"):
        calibrate(model, records[:50])


def test_records_follow_the_context():
    log = SimpleNamespace(drafted=(3, 0), accepted=(2, 0), draft_seconds=(0.1, 0.0), verify_seconds=(0.2, 0.3))
    first, second = records_of(7, 100, log, neural=True)
    assert (first.answer, first.load.context, first.load.committed, first.load.neural) == (7, 100.0, 3.0, True)
    assert (second.load.context, second.load.nodes, second.load.neural) == (103.0, 0, False)


def test_repeats_of_an_answer_give_each_step_its_fastest_seconds():
    def log(draft, verify, drafted=(3, 0)):
        return Generated(
            tokens=(1, 2, 3, 4, 5),
            finish="length",
            drafted=drafted,
            accepted=(2, 0),
            draft_seconds=draft,
            verify_seconds=verify,
        )

    found = fastest([log((0.1, 0.0), (0.5, 0.2)), log((0.3, 0.1), (0.2, 0.9))])
    assert (found.draft_seconds, found.verify_seconds) == ((0.1, 0.0), (0.2, 0.2))
    with pytest.raises(InputError, match="took other steps when it was repeated"):
        fastest([log((0.1, 0.0), (0.5, 0.2)), log((0.1, 0.0), (0.5, 0.2), drafted=(2, 0))])


def test_the_engine_layers_hold_the_bytes_of_the_shape():
    shape = find_model("smollm2-135m")
    layers = engine_layers(shape)
    assert len(layers) == 4 * shape.layers + 1
    assert sum(out * inner for out, inner in layers) == shape.body_parameters + shape.head_parameters
