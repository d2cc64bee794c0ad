"""Which knobs to change first: those that address the gap which dominates the current best. Derived from history."""

from collections.abc import Sequence

from autotune.base import Trial
from autotune.history import measured, ratio
from space.knobs import KnobSpace

# The other knobs keep weight 1: the named gap is a hint, and a wrong one must not hide half of the space.
BOOST = 3.0


def knob_weights(space: KnobSpace, history: Sequence[Trial]) -> dict[str, float]:
    """Relative chance of each knob to be changed, by name."""
    best = max(measured(history), key=ratio, default=None)
    gap = best.evaluation.descriptor.gap if best is not None and best.evaluation.descriptor is not None else None
    return {knob.name: BOOST if knob.gap == gap else 1.0 for knob in space.knobs}
