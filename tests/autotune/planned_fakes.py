"""A stand-in without a model: answers whose acceptance follows from the knobs, and a session that starts nothing."""

from archive.base import Forced
from autotune.client import RequestFailed
from autotune.prepared import PreparedPrompt
from autotune.stand_in import Decoded
from engine.protocol import Generated
from space.outcome import Outcome

TOKENS = 25
PROMPTS = {
    "search": tuple(PreparedPrompt(id=f"s{i}", group="g", tokens=tuple(range(40 + i))) for i in range(3)),
    "confirm": tuple(PreparedPrompt(id=f"c{i}", group="g", tokens=tuple(range(60 + i))) for i in range(3)),
}


def answer(knobs) -> Generated:
    """24 tokens after the first: 3 a step of a neural drafter of length two or more, 2 of a text drafter, else 1."""
    drafter, length = knobs["drafter"], int(knobs.get("draft_length", 0))
    length = min(length, 7) if drafter == "dflash" else length
    accepted = min(length, {"none": 0, "dflash": 2}.get(drafter, 1))
    steps = (TOKENS - 1) // (accepted + 1)
    return Generated(
        tokens=tuple(range(TOKENS)),
        finish="length",
        drafted=(length,) * steps,
        accepted=(accepted,) * steps,
        draft_seconds=(0.01,) * steps,
        verify_seconds=(0.02,) * steps,
    )


class FakeStandIn:
    """Remembers what was asked; `broken` maps a drafter to how its decode ends."""

    def __init__(self, broken=None):
        self.asked = []
        self.broken = broken or {}

    def decode(self, genome, stage):
        self.asked.append((genome.id, stage))
        trouble = self.broken.get(genome.knobs["drafter"])
        if trouble == "oom":
            raise RequestFailed(Outcome.OOM, "too big")
        prompts = PROMPTS[stage]
        tokens = TOKENS * len(prompts)
        return Decoded(
            answers=tuple((prompt, answer(genome.knobs)) for prompt in prompts),
            forced=Forced(tokens=tokens, exact=tokens, near_ties=0, first_mismatch=trouble),
        )


class FakeSession:
    """Stands where a session with workers would."""

    def __init__(self, deployment, home, say):
        self.deployment = deployment

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
