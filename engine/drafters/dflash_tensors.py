"""The tensors of DFlash, DFlash2 and DSpark files: spellings, the mask's row, draft ids, whose tables are used."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from engine.drafters.dflash_body import DFlashConfig, DraftBody, DraftTables
from engine.models.llama import Llama
from engine.weights.checkpoint import model_files
from space.errors import EngineError, nearest

_SPELLINGS = {
    "midlayer.": "layers.0.",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "logit_head.markov_head.": "markov_head.",
    "logit_head.confidence_head.": "confidence_head.",
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
}
"""Beginnings of tensor names that some files have, and what they stand for."""
_UNUSED = ("t2d",)
_EMBEDDING, _HEAD, _MASK = "embed_tokens.weight", "lm_head.weight", "mask_embedding"
_SIDE_FILE = "mask_embedding.pt"


@dataclass(frozen=True, slots=True)
class OwnTables:
    """Tables that a file holds itself, bfloat16; None where the target's are used."""

    embedding: Tensor | None
    head: Tensor | None


def fill(model: DraftBody, folder: Path, target_embedding: Tensor | None) -> OwnTables:
    """Reads a folder's tensors into a model made on the meta device, in bfloat16.

    Args:
        model: what config.json asks for; EngineError names the first tensor that does not fit.
        folder: the checkpoint.
        target_embedding: where the mask's row is taken from if the folder has none; None where it must have one.
    """
    config, path = model.config, folder / "model.safetensors"
    tensors = _split(_read(folder), config)
    own = OwnTables(
        _table(tensors.pop(_EMBEDDING, None), _EMBEDDING, config.vocab_size, config.hidden_size, path),
        _table(tensors.pop(_HEAD, None), _HEAD, config.table_size, config.hidden_size, path),
    )
    if own.embedding is None and target_embedding is not None:
        _same_width(_EMBEDDING, config.hidden_size, target_embedding.shape[1])
    if _MASK not in tensors:
        table = own.embedding if own.embedding is not None else target_embedding
        tensors[_MASK] = _mask_row(folder, config, table)
    expected = model.state_dict()
    _fit(expected, tensors, path)
    model.load_state_dict({name: tensors[name].to(expected[name].dtype) for name in expected}, assign=True)
    return own


def join(model: DraftBody, own: OwnTables, target: Llama) -> DraftTables:
    """The tables to draft with: the file's where it has them, else the target's; drafted rows gathered once."""
    hidden, ids = model.config.hidden_size, model.draft_ids()
    if own.head is None:
        _same_width(_HEAD, hidden, target.config.hidden)
    if ids is not None and not bool(((ids >= 0) & (ids < target.config.vocab)).all()):
        wrong = int(((ids < 0) | (ids >= target.config.vocab)).nonzero()[0])
        raise EngineError(
            f"the drafter's d2t maps draft token {wrong} to {int(ids[wrong])}; "
            f"the target has tokens 0..{target.config.vocab - 1}"
        )
    embedding = own.embedding if own.embedding is not None else target.embedding
    head = own.head
    if head is None:
        head = target.head.weight if ids is None else target.head.weight[ids]
    return DraftTables(embedding=embedding, head=head, ids=ids)


def _same_width(name: str, hidden: int, target: int) -> None:
    if hidden != target:
        raise EngineError(
            f"the drafter lacks tensor {name!r}: its hidden_size is {hidden}, so it cannot use the target's table, "
            f"whose rows have {target}"
        )


def _read(folder: Path) -> dict[str, Tensor]:
    """All tensors by their usual names."""
    tensors: dict[str, Tensor] = {}
    for path in model_files(folder):
        try:
            found = load_file(path)
        except OSError as error:
            raise EngineError(f"cannot read {path}: {error.strerror or error}") from error
        except SafetensorError as error:
            raise EngineError(f"{path} is damaged ({error}); fetch it again") from error
        for name, tensor in found.items():
            start = next((old for old in _SPELLINGS if name.startswith(old)), "")
            usual = _SPELLINGS[start] + name.removeprefix(start) if start else name
            if usual in tensors:
                raise EngineError(f"{path} holds {usual!r} twice, once as {name!r}")
            tensors[usual] = tensor
    return {name: tensor for name, tensor in tensors.items() if name not in _UNUSED}


def _split(tensors: dict[str, Tensor], config: DFlashConfig) -> dict[str, Tensor]:
    """Takes fused `qkv_proj` apart: query rows, key rows, value rows."""
    keys = config.num_key_value_heads * config.head_dim
    sizes = [config.num_attention_heads * config.head_dim, keys, keys]
    apart = {}
    for name, tensor in tensors.items():
        if ".qkv_proj." not in name or tensor.shape[0] != sum(sizes):
            apart[name] = tensor
            continue
        for part, rows in zip("qkv", tensor.split_with_sizes(sizes), strict=True):
            apart[name.replace(".qkv_proj.", f".{part}_proj.")] = rows.contiguous()
    return apart


def _table(found: Tensor | None, name: str, rows: int, hidden: int, path: Path) -> Tensor | None:
    if found is None:
        return None
    _check(name, found, torch.Size((rows, hidden)), torch.bfloat16, path)
    return found.bfloat16()


def _mask_row(folder: Path, config: DFlashConfig, table: Tensor | None) -> Tensor:
    """The input row of a mask: a side file's, else the table's row of the mask token."""
    side = folder / _SIDE_FILE
    if side.exists():
        return _side_row(side, config)
    token = config.mask_token_id
    if table is None or token is None or token >= len(table):
        raise EngineError(
            f"{folder}: no row for the mask: mask_token_id {'(none below vocab_size)' if token is None else token} "
            f"is in no embedding table at hand, and there is neither tensor {_MASK!r} nor {_SIDE_FILE}"
        )
    return table[token].clone()


def _side_row(path: Path, config: DFlashConfig) -> Tensor:
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise EngineError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    row = values.get("embedding") if isinstance(values, dict) else None
    if not isinstance(row, Tensor) or row.numel() != config.hidden_size:
        raise EngineError(f"{path} must hold an object with 'embedding', a row of {config.hidden_size} numbers")
    token = values.get("mask_token_id")
    if config.mask_token_id is not None and token not in (None, config.mask_token_id):
        raise EngineError(f"{path} is for mask_token_id {token}, config.json says {config.mask_token_id}")
    return row.flatten()


def _fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    missing = sorted(set(expected) - set(found))
    if missing:
        raise EngineError(f"{path} lacks tensor {missing[0]!r} ({len(missing)} missing); config.json asks for it")
    for name, tensor in found.items():
        if name not in expected:
            raise EngineError(f"{path}: unknown tensor {name!r}{nearest(name, expected)}")
        _check(name, tensor, expected[name].shape, expected[name].dtype, path)


def _check(name: str, found: Tensor, shape: torch.Size, dtype: torch.dtype, path: Path) -> None:
    """Any float will do for a float (a quantised tensor would need its scales), any integer for an integer."""
    alike = found.is_floating_point() and found.element_size() > 1 if dtype.is_floating_point else _whole(found)
    if found.shape != shape or not alike:
        raise EngineError(
            f"{path}: tensor {name!r} is {found.dtype} {list(found.shape)}; config.json asks for {dtype} {list(shape)}"
        )


def _whole(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool
