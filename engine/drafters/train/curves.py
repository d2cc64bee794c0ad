"""A run's log as one picture: training loss and held-out tokens per step."""

import json
from pathlib import Path

import structlog


def draw_curves(folder: Path) -> bool:
    """Writes curves.png from log.jsonl; False (and a log line) when matplotlib, the extra `train`, is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        structlog.get_logger().warning("no curves.png: matplotlib is missing; install specpilot[train]")
        return False
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, key, title in zip(
        panels, ("loss", "held_tau"), ("training loss", "tokens per step on held-out text"), strict=True
    ):
        points = [(r["step"], r[key]) for r in records if key in r]
        panel.plot([p[0] for p in points], [p[1] for p in points], marker="." if key == "held_tau" else "")
        panel.set(title=title, xlabel="training step")
        panel.grid(alpha=0.3)
    figure.savefig(folder / "curves.png", dpi=100)
    return True
