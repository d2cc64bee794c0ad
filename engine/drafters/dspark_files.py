"""The config.json of a DSpark checkpoint: DeepSpec's flat keys, or SpecForge's inside `dflash_config`."""

from engine.drafters.dflash_keys import Keys
from engine.drafters.dflash_shape import read_shape
from engine.drafters.dspark import HEADS, DSparkConfig


def read_dspark_config(keys: Keys, target_layers: int) -> DSparkConfig:
    """Reads a DSpark config; EngineError names the key, its value and what is allowed."""
    keys.choice("projector_type", (None, "dspark"), nested=True)
    rank = keys.integer("markov_rank", nested=True, least=0)
    kind = keys.choice("markov_head_type", HEADS if rank else (None, *HEADS), nested=True)
    confident = bool(keys.flag("enable_confidence_head", False, nested=True))
    reads = bool(keys.flag("confidence_head_with_markov", False, nested=True))
    return DSparkConfig(
        **read_shape(keys, target_layers, sliding_is_causal=False, from_anchor=True),
        head_rank=rank,
        head_type=kind or "vanilla",
        confident=confident,
        confidence_reads_previous=confident and reads,
    )
