"""Gaps: named distances between a system and its ceiling, each with the speedup that closing it would give.

A gap is closed in the cost model and the step is priced anew, so gains are of the whole step and not of a part. They do
not multiply: two gaps may be the same seconds. The waterfall closes them one after the other and does add up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from autotune.costmodel import CostModel, Load, StepTime
from autotune.overheads import FLAT, Overheads

PACKED_BYTES = 12.05 / 16.0
"""Bytes of losslessly packed weights over bf16: 12 bits and the side tables (docs/weight12.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapKind:
    """One gap: what it is, what its ceiling is, and the axis value of the archive's grid that it falls under."""

    name: str
    words: str
    ceiling: str
    axis: str


_KINDS = (
    GapKind(
        name="padding", words="batch padding", ceiling="no row is filled up to a captured graph size", axis="waste"
    ),
    GapKind(name="waste", words="verification waste", ceiling="rejected nodes cost nothing to verify", axis="waste"),
    GapKind(name="draft", words="draft cost", ceiling="drafting is free, or hidden behind verification", axis="draft"),
    GapKind(name="host", words="host and launch", ceiling="no launch and no wait for the host", axis="host"),
    GapKind(name="kv", words="KV reads", ceiling="keys and values stream at full read bandwidth", axis="weights"),
    GapKind(
        name="bandwidth",
        words="kernel bandwidth",
        ceiling="products attain the device's read bandwidth and matrix rate",
        axis="weights",
    ),
    GapKind(
        name="weights", words="weight bytes", ceiling="weights take 12 bits instead of 16, exactly", axis="weights"
    ),
    GapKind(
        name="acceptance",
        words="acceptance",
        ceiling="every true token that the drafter has in its top 4 is accepted",
        axis="acceptance",
    ),
)
KINDS: Mapping[str, GapKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""In the order in which the waterfall closes them: what costs nothing to believe first, what needs research last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """`saved`: seconds a committed token that closing it alone would save; `gain`: speed with it closed over now."""

    kind: GapKind
    saved: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GapReport:
    """The gaps of one system under one load.

    per_token: seconds a committed token of the whole batch. gaps: largest gain first. fall: the waterfall, as (name,
    seconds a token after closing this gap and all before it), in the order of KINDS. ceiling_tau is None when nothing
    is known of the drafter's alternatives: acceptance is then no gap of the report.
    """

    system: str
    load: Load
    step: StepTime
    per_token: float
    ceiling_tau: float | None
    gaps: tuple[Gap, ...]
    fall: tuple[tuple[str, float], ...]

    @property
    def dominant(self) -> GapKind:
        """The gap with the largest gain."""
        return self.gaps[0].kind


def ceiling_tau(coverage: Sequence[float]) -> float:
    """Tokens a step when every token that the drafter's candidates contain is accepted.

    Args:
        coverage: for each position, the share of true tokens among the candidates when all before were right.
    """
    total = held = 1.0
    for share in coverage:
        held *= share
        total += held
    return total


Closing = Callable[[Overheads], Overheads]

_SYSTEM_CLOSINGS: Mapping[str, Closing] = {
    "padding": lambda system: replace(system, sizes=()),
    "kv": lambda system: replace(system, kv_share=1.0),
    "bandwidth": lambda system: replace(system, read_share=1.0, matrix_share=1.0, matrix_factor=FLAT),
    "weights": lambda system: replace(system, weight_bytes=min(system.weight_bytes, PACKED_BYTES)),
}


def _step(model: CostModel, load: Load, closed: Sequence[str]) -> StepTime:
    system = model.system
    for name, closing in _SYSTEM_CLOSINGS.items():
        system = closing(system) if name in closed else system
    model = replace(model, system=system)
    step = model.step(load)
    if "waste" in closed:
        useful = model.step(replace(load, nodes=max(0, math.ceil(load.committed) - 1)))
        kept = {
            part: min(getattr(step, part), getattr(useful, part))
            for part in ("weights", "attention", "head", "sampling")
        }
        step = replace(step, **kept)
    if "draft" in closed:
        step = replace(step, draft=0.0, launch=min(step.launch, model.step(replace(load, neural=False)).launch))
    if "host" in closed:
        step = replace(step, launch=0.0, host=0.0)
    return step


def gap_report(model: CostModel, load: Load, ceiling: float | None) -> GapReport:
    """Prices every gap of a system under a load; `ceiling` is the tau that its drafter's candidates allow."""

    def per_token(closed: Sequence[str]) -> float:
        tau = load.committed
        if "acceptance" in closed and ceiling is not None:
            tau = max(tau, ceiling)
        return _step(model, load, closed).total / (load.batch * tau)

    names = [name for name in KINDS if name != "acceptance" or ceiling is not None]
    now = per_token(())
    gaps = [Gap(kind=KINDS[name], saved=now - per_token((name,)), gain=now / per_token((name,))) for name in names]
    fall = tuple((name, per_token(names[: index + 1])) for index, name in enumerate(names))
    return GapReport(
        system=model.system.name,
        load=load,
        step=model.step(load),
        per_token=now,
        ceiling_tau=ceiling,
        gaps=tuple(sorted(gaps, key=lambda gap: -gap.gain)),
        fall=fall,
    )
