"""Where a deployment's target lives: `embedded:smollm2-135m`, a GGUF file, or a checkpoint folder."""

import os
from collections.abc import Callable
from pathlib import Path

from engine.weights.embedded import embedded_checkpoint, sha256_of
from engine.weights.gguf import convert_gguf
from space.errors import EngineError

EMBEDDED = "embedded:smollm2-135m"
EMBEDDED_FOLDER = Path("models") / "smollm2-135m-instruct"
"""Where the embedded checkpoint lies in the home folder."""


def home_folder() -> Path:
    """$SPECPILOT_HOME, or ~/.cache/specpilot."""
    return Path(os.environ.get("SPECPILOT_HOME") or Path.home() / ".cache" / "specpilot")


def checkpoint_folder(source: str, home: Path, say: Callable[[str], None]) -> Path:
    """Returns a Hugging Face checkpoint folder for a target source, converting or fetching it where needed.

    Raises:
        EngineError: the source does not exist or cannot be read; the message says what is allowed.
    """
    if source == EMBEDDED:
        return embedded_checkpoint(home / EMBEDDED_FOLDER, say)
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf" and path.is_file():
        folder = home / "models" / f"{path.stem}-{sha256_of(path)[:12]}"
        if not folder.exists():
            say(f"converting {path.name} to bf16 once")
            convert_gguf(path, folder)
        return folder
    raise EngineError(f"target source {source!r} is not here: give {EMBEDDED!r}, a .gguf file or a checkpoint folder")
