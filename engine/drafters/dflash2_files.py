"""The config.json of a DFlash2 checkpoint."""

from engine.drafters.dflash2 import DFlash2Config
from engine.drafters.dflash_keys import Keys
from engine.drafters.dflash_shape import read_shape


def read_dflash2_config(keys: Keys, target_layers: int) -> DFlash2Config:
    """Reads a DFlash2 config; EngineError names the key, its value and what is allowed."""
    keys.choice("projector_type", (None, "dflash2"), nested=True)
    return DFlash2Config(
        **read_shape(keys, target_layers, sliding_is_causal=True, from_anchor=False),
        conv_kernel_size=keys.integer("conv_kernel_size", nested=True),
        conv_group_size=keys.integer("conv_group_size", nested=True),
        selector_rank=keys.integer("selector_rank", nested=True),
        selector_top_k=keys.integer("selector_top_k", nested=True),
    )
