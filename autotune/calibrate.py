"""Fits the cost model to step logs: a few scales by least squares, with the error that is left.

What a busy machine did to single steps must not move the fit: steps that take far longer than the fit says are left
out and the fit is repeated. The error is told on answers that the fit did not see, with every step counted.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from archive.summary import spread
from autotune.costmodel import CostModel, Load, StepTime
from engine.protocol import Generated
from space.errors import InputError

_FAR = 1.5
"""A step that took this many times what the fit says was disturbed."""
_ROUNDS = 5
_PULL = 0.05
FEWEST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of a log. `answer` numbers the answer that it belongs to; seconds as the engine's step log has them."""

    answer: int
    load: Load
    draft_seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted scales, and the median absolute error of a step's seconds on answers that the fit did not see.

    products, attention, operators: what the target's matrix products, its attention and its operators take over what
    the profile says; `draft` the same for a neural drafter's pass, its operators included (1.0 without one in the log).
    noise: how far this machine's AR steps, which are all the same work, spread; no model can err by much less.
    """

    products: float
    attention: float
    operators: float
    draft: float
    verify_error: float
    step_error: float
    noise: float
    fitted: int
    tested: int

    def step(self, model: CostModel, load: Load) -> tuple[float, float]:
        """Seconds of drafting and of verifying by the calibrated model."""
        part = model.step(load)
        verify = (
            self.products * (part.weights + part.head + part.sampling)
            + self.attention * part.attention
            + self.operators * model.target_launch
        )
        return self.draft * (part.draft + part.launch - model.target_launch), verify


def records_of(answer: int, prompt: int, generated: Generated, *, neural: bool) -> list[StepRecord]:
    """The steps of one answer after a prompt of so many tokens."""
    records, context = [], float(prompt)
    log = zip(generated.drafted, generated.accepted, generated.draft_seconds, generated.verify_seconds, strict=True)
    for drafted, accepted, draft_seconds, verify_seconds in log:
        load = Load(batch=1, nodes=drafted, context=context, committed=accepted + 1.0, neural=neural and drafted > 0)
        records.append(StepRecord(answer=answer, load=load, draft_seconds=draft_seconds, verify_seconds=verify_seconds))
        context += accepted + 1
    return records


def fastest(repeats: Sequence[Generated]) -> Generated:
    """One log of several of the same answer: each step with its fastest seconds, since its work is the same each time.

    Raises:
        InputError: the logs are not of the same steps.
    """
    first = repeats[0]
    if any((r.drafted, r.accepted) != (first.drafted, first.accepted) for r in repeats):
        raise InputError("the same request took other steps when it was repeated; its steps cannot be compared")
    draft, verify = zip(*((r.draft_seconds, r.verify_seconds) for r in repeats), strict=True)
    shortest = {
        "draft_seconds": tuple(map(min, zip(*draft, strict=True))),
        "verify_seconds": tuple(map(min, zip(*verify, strict=True))),
    }
    return first.model_copy(update=shortest)


def _verify_features(model: CostModel, load: Load) -> tuple[float, float, float]:
    part: StepTime = model.step(load)
    return part.weights + part.head + part.sampling, part.attention, model.target_launch


def _nonnegative(features: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Least squares of relative errors; a scale that would be negative is zero and the rest is fitted again.

    A weak pull towards 1 decides what the log cannot: products and operators are both nearly the same in every step.
    """
    count = features.shape[1]
    pull = _PULL * len(seconds) ** 0.5
    rows = np.vstack([features / seconds[:, None], pull * np.eye(count)])
    target = np.concatenate([np.ones(len(seconds)), np.full(count, pull)])
    scales, active = np.zeros(count), list(range(count))
    while active:
        found = np.linalg.lstsq(rows[:, active], target, rcond=None)[0]
        if (found >= 0).all():
            scales[active] = found
            break
        active.pop(int(found.argmin()))
    return scales


def _robust(features: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    # Starts from the quicker half: the slow steps of a busy machine may be the majority of a log.
    kept = seconds <= np.median(seconds)
    scales = _nonnegative(features[kept], seconds[kept])
    for _ in range(_ROUNDS):
        kept = seconds <= _FAR * (features @ scales)
        if kept.sum() < features.shape[1]:
            break
        scales = _nonnegative(features[kept], seconds[kept])
    return scales


def calibrate(model: CostModel, records: Sequence[StepRecord]) -> Calibration:
    """Fits to every other answer and tests on the rest. InputError when the log is too short to say anything."""
    fit = [record for record in records if record.answer % 2 == 0]
    test = [record for record in records if record.answer % 2 == 1]
    if len(fit) < FEWEST or len(test) < FEWEST:
        raise InputError(
            f"{len(fit)} steps to fit and {len(test)} to test are too few; log at least {FEWEST} each, in two answers"
        )
    features = np.array([_verify_features(model, record.load) for record in fit])
    products, attention, operators = map(float, _robust(features, np.array([r.verify_seconds for r in fit])))
    calibration = Calibration(
        products=products,
        attention=attention,
        operators=operators,
        draft=_draft_scale(model, fit),
        verify_error=0.0,
        step_error=0.0,
        noise=_noise(test),
        fitted=len(fit),
        tested=len(test),
    )
    predicted = [calibration.step(model, record.load) for record in test]
    verify = (abs(p[1] / r.verify_seconds - 1.0) for p, r in zip(predicted, test, strict=True))
    step = (_step_error(p, r) for p, r in zip(predicted, test, strict=True))
    return replace(calibration, verify_error=statistics.median(verify), step_error=statistics.median(step))


def _noise(records: Sequence[StepRecord]) -> float:
    steps = [record.verify_seconds for record in records if record.load.nodes == 0]
    middle = statistics.median(steps) if steps else 1.0
    return spread([seconds / middle - 1.0 for seconds in steps])


def _draft_scale(model: CostModel, records: Iterable[StepRecord]) -> float:
    neural = [record for record in records if record.load.neural]
    if not neural:
        return 1.0
    parts = [(model.step(record.load), record.draft_seconds) for record in neural]
    features = np.array([[part.draft + part.launch - model.target_launch] for part, _ in parts])
    return float(_robust(features, np.array([seconds for _, seconds in parts]))[0])


def _step_error(predicted: tuple[float, float], record: StepRecord) -> float:
    return abs(sum(predicted) / (record.draft_seconds + record.verify_seconds) - 1.0)
