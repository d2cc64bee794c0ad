"""Numbers, durations, outcomes and knobs in words. Pure; ASCII only, so that any locale can show them."""

from collections.abc import Mapping

from rich.text import Text

from archive.base import Forced, Score
from space.genome import Genome
from space.knobs import KnobSpace
from space.outcome import Outcome

OUTCOME_STYLES: Mapping[Outcome, str] = {
    Outcome.OK: "green",
    Outcome.UNSTABLE: "yellow",
    Outcome.CANCELLED: "dim",
    Outcome.STALE: "dim",
    Outcome.MISMATCH: "bold red",
}
"""Colours of outcomes; every other one is red."""


def duration(seconds: float) -> str:
    """Seconds as `8s`, `2m05s` or `1h02m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def ratio(value: float | None) -> str:
    """A ratio as `1.84x`; a dash when there is none."""
    return "-" if value is None else f"{value:.2f}x"


def percent(value: float | None) -> str:
    """A fraction as `2.1%`; a dash when there is none."""
    return "-" if value is None else f"{100 * value:.1f}%"


def decimal(value: float | None, digits: int) -> str:
    """A number with so many digits; a dash when there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def forced_short(forced: Forced | None) -> str:
    """Tokens that passed forcing: `640`, `612/640`, or a dash when none was forced."""
    if forced is None:
        return "-"
    passed = forced.exact + forced.near_ties
    return f"{passed}" if passed == forced.tokens else f"{passed}/{forced.tokens}"


def score_cells(score: Score | None, forced: Forced | None) -> tuple[str, str, str, str, str]:
    """The figures of an evaluation: x AR, x stock, spread, tau, forced; dashes when it has none."""
    if score is None:
        return ("-", "-", "-", "-", forced_short(forced))
    return (
        ratio(score.ratio_ar),
        ratio(score.ratio_stock),
        percent(score.spread),
        decimal(score.tau, 2),
        forced_short(forced),
    )


def forced_long(forced: Forced | None) -> str:
    """Tokens that passed forcing: `640 of 640, 2 near-ties`."""
    if forced is None:
        return "-"
    ties = f", {forced.near_ties} near-tie{'s' * (forced.near_ties != 1)}" if forced.near_ties else ""
    return f"{forced.exact + forced.near_ties} of {forced.tokens}{ties}"


def knob_list(genome: Genome) -> str:
    """All knobs, and the patches: `draft_length=9 drafter=ngram patch=0123456789ab`."""
    patches = [f"patch={patch.id}" for patch in genome.patches]
    return " ".join([*(f"{name}={value}" for name, value in genome.items), *patches])


def knob_changes(space: KnobSpace, genome: Genome, against: Genome) -> str:
    """What a genome has that another one has not: `drafter ngram->suffix, suffix_depth=32`.

    Knobs that only became active and stand at their default are not news, nor are those that are gone.
    """
    old, new = against.knobs, genome.knobs
    defaults = {knob.name: knob.default for knob in space.knobs}
    changed = [f"{name} {old[name]}->{value}" for name, value in new.items() if name in old and old[name] != value]
    added = [f"{name}={v}" for name, v in new.items() if name not in old and v != defaults.get(name)]
    patches = [f"patch {patch.id}" for patch in genome.patches if patch not in against.patches]
    return ", ".join(changed + added + patches) or "same knobs"


def outcome_counts(counts: Mapping[Outcome, int]) -> Text:
    """How evaluations ended, as `52 ok, 1 mismatch`, in colours."""
    told = [
        (f"{counts[outcome]} {outcome}", OUTCOME_STYLES.get(outcome, "red"))
        for outcome in Outcome
        if counts.get(outcome)
    ]
    return Text(", ").join(Text(*pair) for pair in told)


def one_line(text: str, width: int | None = None) -> str:
    """Folds text into one line, and cuts it at `width` characters with three dots."""
    folded = " ".join(text.split())
    if width is None or len(folded) <= width:
        return folded
    return folded[: max(0, width - 3)] + "..."
