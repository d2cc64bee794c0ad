"""Loads a Hugging Face checkpoint folder (config.json and safetensors) into a model, in bf16."""

from pathlib import Path

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.config import LlamaConfig, read_config
from engine.models.linear import Linear
from engine.models.llama import Llama, LlamaLayer
from space.errors import EngineError

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class _Index(BaseModel):
    """The public index of a checkpoint in several files: tensor name to file name."""

    weight_map: dict[str, str]


def model_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those that its index names, or the one."""
    path = folder / "model.safetensors.index.json"
    if not path.exists():
        return [folder / "model.safetensors"]
    try:
        index = _Index.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise EngineError(f"{path} is no index of model files: {error.errors()[0]['msg']}") from error
    return [folder / name for name in sorted(set(index.weight_map.values()))]


class _Tensors:
    """All tensors of a checkpoint by name, checked for their shape when taken."""

    def __init__(self, folder: Path) -> None:
        self._where: dict[str, Path] = {}
        self._open = {}
        for path in model_files(folder):
            try:
                self._open[path] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise EngineError(f"cannot read model file {path}: {error}") from error
            self._where |= dict.fromkeys(self._open[path].keys(), path)  # type: ignore[no-untyped-call]
        self._folder = folder

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self._where:
            raise EngineError(f"{self._folder}: tensor {name} is missing")
        tensor: Tensor = self._open[self._where[name]].get_tensor(name)  # type: ignore[no-untyped-call]
        if tuple(tensor.shape) != shape:
            raise EngineError(f"{self._folder}: tensor {name} has shape {tuple(tensor.shape)}, expected {shape}")
        if tensor.dtype not in _FLOATS:  # a quantised format keeps its scales elsewhere
            raise EngineError(f"{self._folder}: tensor {name} is {tensor.dtype}, expected bfloat16, float16 or float32")
        return tensor.to(torch.bfloat16)


def interleave(weight: Tensor, head_dim: int) -> Tensor:
    """Reorders query or key rows from halves (i, i + d/2) to neighbours (2i, 2i + 1); scores do not change."""
    return weight.view(-1, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _layer(tensors: _Tensors, index: int, config: LlamaConfig) -> LlamaLayer:
    prefix = f"model.layers.{index}"
    hidden, ffn = config.hidden, config.ffn
    q_rows, kv_rows = config.heads * config.head_dim, config.kv_heads * config.head_dim
    q = interleave(tensors.take(f"{prefix}.self_attn.q_proj.weight", q_rows, hidden), config.head_dim)
    k = interleave(tensors.take(f"{prefix}.self_attn.k_proj.weight", kv_rows, hidden), config.head_dim)
    v = tensors.take(f"{prefix}.self_attn.v_proj.weight", kv_rows, hidden)
    gate = tensors.take(f"{prefix}.mlp.gate_proj.weight", ffn, hidden)
    up = tensors.take(f"{prefix}.mlp.up_proj.weight", ffn, hidden)
    return LlamaLayer(
        attention_norm=tensors.take(f"{prefix}.input_layernorm.weight", hidden),
        qkv=Linear(torch.cat((q, k, v))),
        out=Linear(tensors.take(f"{prefix}.self_attn.o_proj.weight", hidden, q_rows)),
        ffn_norm=tensors.take(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=Linear(torch.cat((gate, up))),
        down=Linear(tensors.take(f"{prefix}.mlp.down_proj.weight", hidden, ffn)),
    )


def load_checkpoint(folder: Path) -> Llama:
    """Loads a Llama checkpoint. EngineError names the file or tensor, what was found and what was expected."""
    config = read_config(folder)
    tensors = _Tensors(folder)
    embedding = tensors.take("model.embed_tokens.weight", config.vocab, config.hidden)
    head = embedding if config.tied else tensors.take("lm_head.weight", config.vocab, config.hidden)
    layers = [_layer(tensors, index, config) for index in range(config.layers)]
    return Llama(config, embedding, layers, tensors.take("model.norm.weight", config.hidden), Linear(head))
