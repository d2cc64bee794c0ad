"""What the configs of DFlash, DFlash2 and DSpark have in common: a Qwen3 body, taps, windows, scales."""

from typing import Any

from engine.drafters.dflash_keys import Keys

_FLAT_FIXED: dict[str, object] = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "mlp_bias": False,
    "is_neox_style": True,
    "partial_rotary_factor": 1,
}
_NESTED_FIXED: dict[str, object] = {
    "attention_mode": "gqa",
    "attention_sink_bias": False,
    "attention_value_scale": 1,
    "shift_label": False,
    "use_swa": False,
}
_INTEGERS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_SLIDING, _FULL = "sliding_attention", "full_attention"
_FIRST_WINDOW = 28  # Qwen3's own default of max_window_layers


def read_shape(keys: Keys, target_layers: int | None, *, sliding_is_causal: bool, from_anchor: bool) -> dict[str, Any]:
    """The fields of DFlashConfig, but the heads'.

    Args:
        keys: config.json.
        target_layers: the target's depth, for a file that does not say it; None if it must.
        sliding_is_causal: what sliding layers are where neither `is_causal` nor `dflash_config.causal` says it.
        from_anchor: whether the anchor's row drafts where `sample_from_anchor` does not say it.
    """
    keys.fixed(_FLAT_FIXED)
    keys.fixed(_NESTED_FIXED, nested=True)
    keys.raw("swa_window_size", nested=True)  # means nothing while use_swa is false
    shape: dict[str, Any] = {name: keys.integer(name) for name in _INTEGERS}
    heads = shape["num_attention_heads"]
    depth = keys.integer("num_target_layers", target_layers, nested=True)
    taps = keys.layers("target_layer_ids", "layer_ids")
    cap = keys.raw("final_logit_softcapping", nested=True)
    mask = keys.integer("mask_token_id", shape["vocab_size"], nested=True, least=0)
    windows, causal = _spans(keys, shape["num_hidden_layers"], sliding_is_causal)
    return shape | {
        "num_key_value_heads": keys.integer("num_key_value_heads", heads),
        "head_dim": keys.integer("head_dim", shape["hidden_size"] // heads),
        "num_target_layers": depth,
        "target_layer_ids": default_taps(depth, shape["num_hidden_layers"]) if taps is None else taps,
        "block_size": keys.integer("block_size", nested=True),
        "rms_norm_eps": keys.number("rms_norm_eps"),
        "rope_theta": _rope_theta(keys),
        "target_hidden_size": keys.integer("target_hidden_size", 0, nested=True),
        "draft_vocab_size": keys.integer("draft_vocab_size", 0, nested=True),
        "mask_token_id": None if mask == shape["vocab_size"] else mask,
        "attention_bias": keys.flag("attention_bias", False),
        "windows": windows,
        "causal": causal,
        "sample_from_anchor": keys.flag("sample_from_anchor", from_anchor, nested=True),
        "input_embedding_scale": keys.number("input_embedding_scale", 1.0, nested=True),
        "output_multiplier": keys.number("output_multiplier", 1.0, nested=True),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0, nested=True) if cap else 0.0,
        "logit_scale": keys.number("logit_scale", 1.0, nested=True),
    }


def default_taps(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """The layers that are tapped where a config lists none: evenly from the second to the third last."""
    if draft_layers == 1:
        return (1,)
    step = (target_layers - 4) / (draft_layers - 1)
    return tuple(round(1 + i * step) for i in range(draft_layers))


def _rope_theta(keys: Keys) -> float:
    """Newer files say it in `rope_parameters`, older ones at the top; only unscaled embeddings are read."""
    found = None
    for name in ("rope_parameters", "rope_scaling"):
        values = keys.raw(name)
        if values is None:
            continue
        if not isinstance(values, dict):
            raise keys.error(name, values, "an object is needed")
        inner = Keys(values, f"{name} in the drafter's config.json")
        kind = inner.raw("rope_type") or inner.raw("type")
        if kind not in (None, "default"):
            raise keys.error(f"{name}.rope_type", kind, "this loader reads 'default' only")
        inner.fixed({"partial_rotary_factor": 1})
        if inner.raw("rope_theta") is not None:
            found = found or inner.number("rope_theta")
        inner.finish()
    if found is None:
        return keys.number("rope_theta")
    keys.raw("rope_theta")  # a copy for older readers
    return found


def _spans(keys: Keys, layers: int, sliding_is_causal: bool) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Windows and causality by layer; both empty where every layer sees everything."""
    sliding = _sliding_layers(keys, layers)
    keys.raw("sliding_window")  # of no use where no layer slides
    width = keys.integer("sliding_window") if any(sliding) else 0
    everywhere = keys.flag("is_causal", None)
    nested = keys.flag("causal", None, nested=True)
    everywhere = nested if everywhere is None else everywhere
    causal = tuple((slides and sliding_is_causal) if everywhere is None else everywhere for slides in sliding)
    windows = tuple(width if slides else 0 for slides in sliding)
    return windows if any(windows) else (), causal if any(causal) else ()


def _sliding_layers(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Which layers have a window: `layer_types`, or `use_sliding_window` from layer `max_window_layers` on."""
    types, use = keys.raw("layer_types"), keys.flag("use_sliding_window", None)
    first = keys.integer("max_window_layers", _FIRST_WINDOW, least=0)
    if types is None:
        return tuple(bool(use) and layer >= first for layer in range(layers))
    if not isinstance(types, list) or len(types) != layers or any(kind not in (_SLIDING, _FULL) for kind in types):
        raise keys.error("layer_types", types, f"{layers} times {_FULL!r} or {_SLIDING!r} is needed")
    if use is False and _SLIDING in types:
        raise keys.error("use_sliding_window", use, f"but layer_types has {_SLIDING!r}: the two must agree")
    return tuple(kind == _SLIDING for kind in types)
