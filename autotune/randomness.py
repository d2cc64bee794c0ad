"""The state of a random generator as text, so that an attempt can carry it and a resumed search continues from it."""

import json
import random


def dump_state(rng: random.Random) -> str:
    """Returns the state as JSON."""
    return json.dumps(rng.getstate(), separators=(",", ":"))


def restored(state: str) -> random.Random:
    """Returns a generator in the given state."""
    version, internal, gauss = json.loads(state)
    rng = random.Random()
    rng.setstate((version, tuple(internal), gauss))
    return rng
