"""Which kind of drafter a checkpoint folder holds. No torch import: the knob space asks before anything is loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from space.errors import EngineError, nearest

KIND_OF: Mapping[str, str] = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "DSparkDraftModel": "dspark",
    "Qwen3DSparkModel": "dspark",
    "LlamaForCausalLMEagle3": "eagle3",
    "Eagle3LlamaForCausalLM": "eagle3",
    "Eagle3Speculator": "eagle3",
    "Eagle3DraftModel": "eagle3",
    "Qwen3Eagle3Model": "eagle3",
    "LlamaForCausalLM": "small",
}
"""What `architectures` in config.json means: the value of the knob `drafter`."""

DRAFTER_KINDS = tuple(dict.fromkeys(KIND_OF.values()))
"""All kinds, each once."""


def read_config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config.json; EngineError says what is wrong with the file."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise EngineError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise EngineError(f"{path} holds a {type(values).__name__}; an object is needed")
    return values


def kind_of(values: Mapping[str, Any], folder: Path) -> str:
    """The kind of the drafter whose config.json says `values`; EngineError for an unknown one, with the nearest known.

    An early spelling of DSpark calls itself DFlashDraftModel and says so in `projector_type`.
    """
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if not isinstance(name, str) or name not in KIND_OF:
        raise EngineError(
            f"{folder / 'config.json'}: architectures is {names!r}{nearest(str(name), KIND_OF)}; "
            f"known: {', '.join(KIND_OF)}"
        )
    nested = values.get("dflash_config")
    projector = nested.get("projector_type") if isinstance(nested, dict) else None
    spelled = (projector or values.get("projector_type")) == "dspark"
    return "dspark" if spelled and KIND_OF[name] == "dflash" else KIND_OF[name]


def drafter_kind(folder: Path) -> str:
    """The kind of a drafter checkpoint, from its config.json."""
    return kind_of(read_config(folder), folder)
