"""The log of a run: one JSON line an event, in a file of the home folder. Silent until a file is opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from space.errors import InputError

_INFO, _CRITICAL = 20, 50


def _silence() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_CRITICAL))


_silence()
logger = structlog.stdlib.get_logger()
"""Import this and bind context: `logger.bind(role="stock").info("worker started", pid=1)`."""


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Appends events to `path` inside. InputError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise InputError(f"cannot write the log {path}: {error.strerror}\nFree space or set SPECPILOT_HOME.") from error
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_INFO),
        logger_factory=structlog.WriteLoggerFactory(file=file),
    )
    try:
        yield
    finally:
        _silence()
        file.close()
