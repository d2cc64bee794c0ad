"""What measuring a planned deployment would need that is not here."""

import os
from pathlib import Path

from space.deployment import Deployment
from space.hardware import find_profile

_DEVICES = Path("/dev/nvidia0")


def hub_folder() -> Path:
    """Where the Hugging Face hub keeps what was downloaded: $HF_HUB_CACHE, $HF_HOME/hub or the default."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"


def has_weights(source: str) -> bool:
    """True when a source is a folder or file here, or a public name that the hub's cache holds."""
    if Path(source).expanduser().exists():
        return True
    snapshots = hub_folder() / f"models--{source.replace('/', '--')}" / "snapshots"
    return snapshots.is_dir() and any(snapshots.iterdir())


def missing(deployment: Deployment, device: Path = _DEVICES) -> list[str]:
    """What is missing, one line each with what to do. Nothing is downloaded or started to find out."""
    lines = []
    if not device.exists():
        title = find_profile(str(deployment.hardware.profile)).title
        lines.append(f"a GPU: {title}; this machine shows none")
    sources = [("target", deployment.target.source)]
    sources += [("drafter", deployment.drafter.source)] if deployment.drafter else []
    for key, source in sources:
        if not has_weights(source):
            lines.append(f"weights of {source}: put a checkpoint folder anywhere and give its path as {key}.source")
    lines.append("an engine for that GPU: this version measures on processors only")
    return lines
