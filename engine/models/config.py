"""Shapes and constants of a Llama-family model, read from a checkpoint's config.json."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from space.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Everything that the forward pass needs to know."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_theta: float
    norm_eps: float
    tied: bool
    max_position: int
    stop_ids: tuple[int, ...]


class _Rope(BaseModel):
    """Older files say `type` for `rope_type`."""

    rope_theta: float = 10000.0
    rope_type: str = Field(default="default", validation_alias=AliasChoices("rope_type", "type"))


class _Public(BaseModel):
    """The keys of a public config.json that matter here; others are ignored, as every loader does."""

    model_config = ConfigDict(extra="ignore")
    model_type: str
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    hidden_act: str = "silu"
    rope_theta: float = 10000.0
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    eos_token_id: int | list[int] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False

    def complaint(self) -> str | None:
        """Says what this engine cannot run yet, or None."""
        ropes = [rope.rope_type for rope in (self.rope_parameters, self.rope_scaling) if rope is not None]
        scaled = [kind for kind in ropes if kind != "default"]
        if self.model_type != "llama":
            return f"model_type {self.model_type!r}: this engine runs 'llama'"
        if self.hidden_act != "silu":
            return f"hidden_act {self.hidden_act!r}: this engine runs 'silu'"
        if scaled:
            return f"rope_type {scaled[0]!r}: this engine runs 'default'"
        if self.attention_bias or self.mlp_bias:
            return "attention_bias or mlp_bias is true: this engine runs models without biases"
        return None


def read_config(folder: Path) -> LlamaConfig:
    """Reads config.json. EngineError names the file, the key and what is allowed."""
    path = folder / "config.json"
    try:
        public = _Public.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise EngineError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error
    except ValueError as error:
        raise EngineError(f"{path} is not valid JSON: {error}") from error
    complaint = public.complaint()
    if complaint:
        raise EngineError(f"{path}: {complaint}")
    eos = public.eos_token_id
    stop = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    return LlamaConfig(
        hidden=public.hidden_size,
        layers=public.num_hidden_layers,
        heads=public.num_attention_heads,
        kv_heads=public.num_key_value_heads or public.num_attention_heads,
        head_dim=public.head_dim or public.hidden_size // public.num_attention_heads,
        ffn=public.intermediate_size,
        vocab=public.vocab_size,
        rope_theta=public.rope_parameters.rope_theta if public.rope_parameters else public.rope_theta,
        norm_eps=public.rms_norm_eps,
        tied=public.tie_word_embeddings,
        max_position=public.max_position_embeddings,
        stop_ids=stop,
    )
