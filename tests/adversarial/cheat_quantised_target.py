"""Verifies with a target whose weights are rounded to 15 levels a matrix: faster in principle, and another model."""

import sys

from engine import worker
from engine.models.linear import Linear
from engine.weights import checkpoint


def rounded(weight):
    step = weight.abs().max() / 7
    return Linear((weight / step).round() * step)


checkpoint.Linear = rounded

if __name__ == "__main__":
    sys.exit(worker.main())
