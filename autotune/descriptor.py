"""Where an evaluation lies in the grid: its speculation width, and the gap in which most of its time goes.

The candidate's seconds are split without remainder. `floor` is the time that its steps would take as one-row passes,
at the AR baseline's verify time a step on this machine, in this evaluation:

- draft: seconds of drafting.
- host: seconds that are neither draft nor verify (prefill, commit, bookkeeping).
- waste: verify time above the floor, as far as it went to rejected nodes.
- acceptance: the floor divided by tau. At tau = 1 all of it could be saved by accepting more; the higher tau, the less.
- weights: the rest of verify: passes that already commit several tokens, and rows that were accepted. Only cheaper
  passes help.
"""

from collections.abc import Sequence

from archive.base import Descriptor, Sample


def _of_role(samples: Sequence[Sample], role: str) -> list[Sample]:
    found = [s for s in samples if s.role == role and s.steps > 0]
    if not found:
        raise ValueError(f"a descriptor needs samples of role {role!r} with at least one step")
    return found


def losses(samples: Sequence[Sample]) -> dict[str, float]:
    """Seconds of the candidate by gap; they add up to its seconds. ValueError without candidate or AR samples."""
    candidate, ar = _of_role(samples, "candidate"), _of_role(samples, "ar")
    seconds, draft, verify = (
        sum(getattr(s, name) for s in candidate) for name in ("seconds", "draft_seconds", "verify_seconds")
    )
    steps, tokens, drafted, accepted = (
        sum(getattr(s, name) for s in candidate) for name in ("steps", "tokens", "drafted", "accepted")
    )
    one_row = sum(s.verify_seconds for s in ar) / sum(s.steps for s in ar)
    floor = min(verify, steps * one_row)
    rejected = (drafted - accepted) / drafted if drafted else 0.0
    waste = (verify - floor) * rejected
    acceptance = floor * min(1.0, steps / tokens) if tokens else floor
    return {
        "acceptance": acceptance,
        "weights": verify - waste - acceptance,
        "waste": waste,
        "draft": draft,
        "host": max(0.0, seconds - draft - verify),
    }


def describe(samples: Sequence[Sample], regime: int) -> Descriptor:
    """The descriptor of one evaluation; `regime` is the number of concurrent requests."""
    lost = losses(samples)
    candidate = _of_role(samples, "candidate")
    tokens = sum(s.tokens for s in candidate)
    width = sum(s.drafted for s in candidate) / tokens if tokens else 0.0
    return Descriptor(regime=regime, gap=max(lost, key=lambda gap: lost[gap]), width=width)
