"""What each choice of a winner is worth: the same setting with one knob back at stock's value, measured alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.base import Trial
from autotune.history import measured, ratio
from autotune.ranking import noise
from space.genome import Genome
from space.knobs import KnobSpace, KnobValue

ABLATE_OPERATOR = "ablate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Knob `name` at `value` instead of stock's `default` makes the winner faster by `gain`, give or take `noise`.

    Both are shares of the ablated setting's speed, on the search prompts.
    """

    name: str
    value: KnobValue
    default: KnobValue
    gain: float
    noise: float


def ablations(winner: Genome, space: KnobSpace) -> Iterator[tuple[str, Genome]]:
    """The knobs that differ from stock's, and the winner without each: what hangs on the knob goes with it."""
    for name, value in winner.items:
        default = space.knob(name).default
        if value != default:
            yield name, Genome.complete(space, {**winner.knobs, name: default})


def worths(winner: Genome, trials: Sequence[Trial], space: KnobSpace) -> tuple[Worth, ...]:
    """What was measured of the winner's choices, the greatest gain first."""
    by_genome = {trial.attempt.genome.id: trial for trial in measured(trials)}
    whole = by_genome.get(winner.id)
    if whole is None:
        return ()
    found = [
        Worth(
            name=name,
            value=winner.knobs[name],
            default=space.knob(name).default,
            gain=ratio(whole) / ratio(without) - 1,
            noise=noise(whole, without) / ratio(without),
        )
        for name, genome in ablations(winner, space)
        if (without := by_genome.get(genome.id)) is not None
    ]
    return tuple(sorted(found, key=lambda worth: -worth.gain))
