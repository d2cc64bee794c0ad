"""Drafter checkpoints: one loader a public format, chosen by what config.json says it is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from engine.base import Drafter, Settings
from engine.drafters.eagle3_drafter import load_eagle3
from engine.drafters.parallel import load_dflash, load_dflash2, load_dspark
from engine.drafters.small import load_small
from engine.formats import kind_of, read_config
from engine.models.llama import Llama


class DraftModel(Protocol):
    """A loaded checkpoint that fits its target; starts one drafter a request."""

    @property
    def kind(self) -> str:
        """The format's name: the value of the knob `drafter` that chooses it."""

    def start(self, settings: Settings) -> Drafter:
        """A fresh drafter for one request."""


_LOADERS: dict[str, Callable[[Path, Mapping[str, Any], Llama], DraftModel]] = {
    "dflash": load_dflash,
    "dflash2": load_dflash2,
    "dspark": load_dspark,
    "eagle3": load_eagle3,
    "small": load_small,
}


def load_drafter_checkpoint(folder: Path, target: Llama) -> DraftModel:
    """Loads a drafter for `target`; EngineError names the key, what it is and what the target has."""
    values = read_config(folder)
    return _LOADERS[kind_of(values, folder)](folder, values, target)
