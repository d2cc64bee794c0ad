"""Drafter checkpoints: one loader a public format, chosen by what config.json says it is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from engine.base import Drafter, Settings
from engine.drafters.dflash_keys import read_config
from engine.drafters.eagle3_drafter import load_eagle3
from engine.drafters.parallel import load_dflash, load_dflash2, load_dspark
from engine.drafters.small import load_small
from engine.models.llama import Llama
from space.errors import EngineError, nearest


class DraftModel(Protocol):
    """A loaded checkpoint that fits its target; starts one drafter a request."""

    @property
    def kind(self) -> str:
        """The format's name: the value of the knob `drafter` that chooses it."""

    def start(self, settings: Settings) -> Drafter:
        """A fresh drafter for one request."""


_LOADERS: dict[str, Callable[[Path, Mapping[str, Any], Llama], DraftModel]] = {
    "DFlashDraftModel": load_dflash,
    "DFlash2DraftModel": load_dflash2,
    "DSparkDraftModel": load_dspark,
    "Qwen3DSparkModel": load_dspark,
    "LlamaForCausalLMEagle3": load_eagle3,
    "Eagle3LlamaForCausalLM": load_eagle3,
    "Eagle3Speculator": load_eagle3,
    "Eagle3DraftModel": load_eagle3,
    "Qwen3Eagle3Model": load_eagle3,
    "LlamaForCausalLM": load_small,
}


def load_drafter_checkpoint(folder: Path, target: Llama) -> DraftModel:
    """Loads a drafter for `target`; EngineError names the key, what it is and what the target has."""
    values = read_config(folder)
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if not isinstance(name, str) or name not in _LOADERS:
        raise EngineError(
            f"{folder / 'config.json'}: architectures is {names!r}{nearest(str(name), _LOADERS)}; "
            f"known: {', '.join(_LOADERS)}"
        )
    return _LOADERS[name](folder, values, target)
