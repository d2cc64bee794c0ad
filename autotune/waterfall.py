"""The waterfall of gaps as a picture: one panel a regime and system, before and after the search."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.gaps import KINDS, GapReport
from space.errors import InputError

_KEPT, _SAVED = "#3b5b8c", "#e0a04c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One waterfall with its title."""

    title: str
    report: GapReport


def draw_waterfalls(path: Path, title: str, rows: Sequence[Sequence[Panel]]) -> None:
    """Writes a PNG: one row of panels a regime.

    Raises:
        InputError: matplotlib, an extra, is not installed; or the file cannot be written.
    """
    try:
        import matplotlib.figure
    except ImportError as error:
        raise InputError("no plot: matplotlib is not installed; pip install -e '.[plot]'") from error
    columns = max(len(row) for row in rows)
    figure = matplotlib.figure.Figure(figsize=(6.4 * columns, 3.6 * len(rows)), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, row in zip(axes, rows, strict=True):
        top = 1.08e6 * max(panel.report.per_token for panel in row)
        for area, panel in zip(line, row, strict=False):
            _draw(area, panel)
            area.set_ylim(0, top)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise InputError(f"cannot write the plot {path}: {error.strerror}") from error


def bars(report: GapReport) -> list[tuple[str, float, float]]:
    """(label, bottom, height) in microseconds a token: now, what each gap takes away, and the floor that is left."""
    here = 1e6 * report.per_token
    drawn = [("now", 0.0, here)]
    for name, seconds in report.fall:
        below = 1e6 * seconds
        drawn.append((KINDS[name].words, below, here - below))
        here = below
    return [*drawn, ("floor", 0.0, here)]


def _draw(area: object, panel: Panel) -> None:
    drawn = bars(panel.report)
    labels = [label for label, _, _ in drawn]
    colours = [_KEPT, *[_SAVED] * (len(drawn) - 2), _KEPT]
    area.bar(range(len(drawn)), [h for _, _, h in drawn], bottom=[b for _, b, _ in drawn], color=colours)  # type: ignore[attr-defined]
    for at, (_, bottom, height) in enumerate(drawn):
        area.annotate(f"{height:.0f}", (at, bottom + height), ha="center", va="bottom", fontsize=8)  # type: ignore[attr-defined]
    area.set_xticks(range(len(drawn)), labels, rotation=30, ha="right", fontsize=8)  # type: ignore[attr-defined]
    area.set_ylabel("us a token")  # type: ignore[attr-defined]
    area.set_title(panel.title, fontsize=10)  # type: ignore[attr-defined]
