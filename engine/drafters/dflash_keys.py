"""A drafter's config.json, read key by key: what no reader asked for, and is not known to change nothing, is refused.

Format keys may stand in an object of their own (`dflash_config`) or beside the others; the object wins.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from space.errors import EngineError, nearest

NESTED = "dflash_config"

ORDINARY = frozenset(
    {
        "_name_or_path", "add_cross_attention", "architectures", "attention_dropout", "auto_map", "bos_token_id",
        "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id", "dtype", "eos_token_id",
        "finetuning_task", "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id",
        "max_position_embeddings", "output_attentions", "output_hidden_states", "pad_token_id", "prefix",
        "problem_type", "pruned_heads", "return_dict", "sep_token_id", "task_specific_params", "tie_encoder_decoder",
        "tie_word_embeddings",
        "tokenizer_class", "torch_dtype", "transformers_version", "use_cache", "use_return_dict",
    }
)  # fmt: skip
"""Keys of any Hugging Face config that say nothing about how this drafter computes. Which tables are tied is among
them: what counts is which tables the file holds."""

_MOST = 2**40
"""No number of a config is as large; NaN is not below it either."""

TRAINING = frozenset(
    {
        "confidence_head_alpha", "has_embed_tokens", "has_lm_head", "loss_decay_gamma", "mask_token", "num_anchors",
        "selector_loss_weight",
    }
)  # fmt: skip
"""Format keys that only training or a tokenizer reads, or that the file itself answers."""


class Keys:
    """The keys of one config.json. Each reader says what it allows; `finish` refuses what nobody read.

    Errors are EngineErrors of one line: the file, the key, its value and what is allowed.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        """Takes the file's content and its path for messages."""
        self._values, self._where = values, where
        nested = {} if values.get(NESTED) is None else values[NESTED]
        if not isinstance(nested, dict):
            raise self.error(NESTED, nested, "an object is needed")
        self._nested: Mapping[str, Any] = nested
        self._flat_read, self._nested_read = {NESTED}, set[str]()

    def error(self, name: str, value: object, wanted: str) -> EngineError:
        """An error about one key."""
        return EngineError(f"{self._where}: {name} is {value!r}; {wanted}")

    def raw(self, name: str, *, nested: bool = False) -> Any:
        """A key's value, None where it is absent or null; a format key is looked up in the nested object first."""
        self._flat_read.add(name)
        if nested:
            self._nested_read.add(name)
            if self._nested.get(name) is not None:
                return self._nested[name]
        return self._values.get(name)

    def need(self, name: str, *, nested: bool = False) -> Any:
        """Like `raw`, but the key must be there."""
        value = self.raw(name, nested=nested)
        if value is None:
            place = f", in {NESTED} or beside it" if nested else ""
            raise EngineError(f"{self._where} lacks {name!r}{place}; this format needs it")
        return value

    def number(self, name: str, default: float | None = None, *, nested: bool = False) -> float:
        """A positive number; without a default the key must be there."""
        value = self.need(name, nested=nested) if default is None else self.raw(name, nested=nested)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not 0 < value < _MOST:
            raise self.error(name, value, "a positive number is needed")
        return float(value)

    def integer(self, name: str, default: int | None = None, *, nested: bool = False, least: int = 1) -> int:
        """A whole number of at least `least`; without a default the key must be there."""
        value = self.need(name, nested=nested) if default is None else self.raw(name, nested=nested)
        if value is None and default is not None:
            return default
        if type(value) is float and not value.is_integer():
            raise self.error(name, value, "a whole number is needed")
        if type(value) not in (int, float) or not least <= value < _MOST:
            raise self.error(name, value, f"a {'positive number' if least == 1 else f'number from {least}'} is needed")
        return int(value)

    def flag(self, name: str, default: bool | None, *, nested: bool = False) -> bool | None:
        """True or false."""
        value = self.raw(name, nested=nested)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false is needed")
        return value

    def choice(self, name: str, options: Sequence[str | None], *, nested: bool = False) -> str | None:
        """One of a few names, or null where that is allowed."""
        value = self.raw(name, nested=nested)
        if value not in options:
            allowed = " or ".join("none" if option is None else repr(option) for option in options)
            raise self.error(name, value, f"allowed is {allowed}")
        return value if value is None else str(value)

    def layers(self, *names: str) -> tuple[int, ...] | None:
        """Layer numbers under the first of the names that is there; None without any."""
        found = None
        for name in names:
            value = self.raw(name, nested=True)
            if value is None:
                continue
            if not isinstance(value, list) or not all(type(i) is int for i in value):
                raise self.error(name, value, "a list of layer numbers is needed")
            found = found or tuple(value)
        return found

    def fixed(self, wanted: Mapping[str, object], *, nested: bool = False) -> None:
        """Keys that say what this reader always does: absent, null, or exactly that."""
        for name, value in wanted.items():
            found = self.raw(name, nested=nested)
            if found is not None and found != value:
                raise self.error(name, found, f"this loader reads {value!r} only")

    def finish(self) -> None:
        """Refuses the first key that nobody read."""
        parts = ((self._values, self._flat_read | ORDINARY, ""), (self._nested, self._nested_read, f", {NESTED}"))
        for values, known, place in parts:
            for name in values:
                if name not in known and name not in TRAINING:
                    raise EngineError(f"{self._where}{place}: unknown key {name!r}{nearest(name, known)}")
