"""The parallel drafters (DFlash, DFlash2, DSpark) behind the engine's contract."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from engine.base import Lattice, Settings
from engine.drafters.dflash import DFlash, DFlashSession
from engine.drafters.dflash2 import DFlash2
from engine.drafters.dflash2_files import read_dflash2_config
from engine.drafters.dflash_body import DFlashConfig, DraftBody, DraftTables
from engine.drafters.dflash_files import check_target, read_dflash_config
from engine.drafters.dflash_keys import Keys
from engine.drafters.dflash_packed import PackedDFlash, PackedSession, packable
from engine.drafters.dflash_tensors import OwnTables, fill, join
from engine.drafters.dspark import DSpark
from engine.drafters.dspark_files import read_dspark_config
from engine.drafters.lattice import cut, greedy_walk
from engine.models.llama import Llama
from space.errors import EngineError

Build: TypeAlias = Callable[[Keys, int], DraftBody]


class Session(Protocol):
    """One request's drafting, whatever the layout of the weights."""

    def extend(self, taps: Tensor) -> None:
        """Injects taps [rows, taps * hidden] of newly committed positions."""

    def propose(self, anchor: int, limit: int, candidates: int | None) -> list[int]:
        """Drafts at most `limit` tokens after the committed token `anchor`."""

    def lattice(self, anchor: int, limit: int, width: int, candidates: int | None, ahead: int = 0) -> Lattice:
        """Scores at most `limit` positions after `anchor`, which stands `ahead` positions behind the committed text."""


class DFlashDrafter:
    """Drafts a block in one pass from the target's tapped hidden states."""

    def __init__(
        self, session: Session, config: DFlashConfig, candidates: int | None = 64, confidence: float = 0.0
    ) -> None:
        """Takes a fresh session of a loaded drafter.

        Args:
            session: drafts for one request.
            config: the drafter's.
            candidates: how many tokens a position the pair head (Markov head, selector) rescores; None leaves it out.
            confidence: a draft ends before the first position whose confidence is below this, see `lattice.cut`.
        """
        self._session = session
        self._taps = config.target_layer_ids
        self._longest = config.draft_length
        self._candidates = candidates
        self._confidence = confidence
        self._anchor = 0

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers that the drafter was trained on."""
        return self._taps

    def extend(self, tokens: Sequence[int], taps: Tensor | None = None) -> None:
        """Injects the taps of committed positions; the newest token becomes the anchor."""
        if taps is None:
            raise EngineError("a parallel drafter needs the target's taps with every committed token")
        self._session.extend(taps)
        self._anchor = tokens[-1]

    def propose(self, limit: int) -> list[int]:
        """Returns at most `limit` tokens, and at most the block that the drafter was trained for."""
        if self._confidence > 0:
            chain = self.lattice(limit, 1)
            return [int(token) for token in greedy_walk(chain)[0]] if len(chain.ids) else []
        return self._session.propose(self._anchor, min(limit, self._longest), self._candidates)

    def lattice(self, limit: int, width: int, path: Sequence[int] = ()) -> Lattice:
        """Scores at most `limit` positions, and at most the block, with at most `width` candidates each.

        The greedy walk over it is what `propose` drafts, whatever the width. Behind a drafted `path` the block's anchor
        is the path's last token, at its own position; the context lacks the path, which has no taps.
        """
        anchor, limit = path[-1] if path else self._anchor, min(limit, self._longest)
        found = self._session.lattice(anchor, limit, width, self._candidates, len(path))
        return cut(found, self._confidence)


@dataclass(frozen=True, slots=True)
class DFlashCheckpoint:
    """A loaded checkpoint of a parallel drafter and the target that it drafts for.

    `kind` is the format's name. `own` are the tables that the file holds itself.
    """

    model: DraftBody
    target: Llama
    kind: str = "dflash"
    own: OwnTables = OwnTables(None, None)
    tables: DraftTables = field(init=False)
    packed: PackedDFlash | None = field(init=False)

    def __post_init__(self) -> None:
        """Chooses the tables, gathers the rows that may be drafted, and lays the weights out for speed, once."""
        object.__setattr__(self, "tables", join(self.model, self.own, self.target))
        packed = None
        if isinstance(self.model, DFlash) and packable(self.model.config):
            packed = PackedDFlash(self.model, self.tables, self.target)
        object.__setattr__(self, "packed", packed)

    def start(self, settings: Settings) -> DFlashDrafter:
        """A fresh drafter for one request."""
        candidates = settings.markov_candidates if settings.markov_head else None
        return DFlashDrafter(self._session(settings), self.model.config, candidates, settings.confidence)

    def _session(self, settings: Settings) -> Session:
        if self.packed is not None:
            self.packed.use(settings.linear_path, settings.draft_vocabulary)
            return PackedSession(self.packed)
        tables = self.tables.first(settings.draft_vocabulary)
        return DFlashSession(self.model, tables.embedding, tables.head, tables.ids)


_BUILD: dict[str, Build] = {
    "dflash": lambda keys, layers: DFlash(read_dflash_config(keys, layers)),
    "dflash2": lambda keys, layers: DFlash2(read_dflash2_config(keys, layers)),
    "dspark": lambda keys, layers: DSpark(read_dspark_config(keys, layers)),
}


def load_parallel(kind: str, folder: Path, values: Mapping[str, Any], target: Llama) -> DFlashCheckpoint:
    """Loads a checkpoint of one of the three formats for `target`; EngineError in one line for what does not fit."""
    keys = Keys(values, str(folder / "config.json"))
    with torch.device("meta"):
        model = _BUILD[kind](keys, target.config.layers).to(torch.bfloat16)
    keys.finish()
    found = target.config
    check_target(model.config, hidden_size=found.hidden, vocab_size=found.vocab, num_layers=found.layers)
    own = fill(model, folder, target.embedding)
    return DFlashCheckpoint(model.eval(), target, kind, own)


def load_dflash(folder: Path, values: Mapping[str, Any], target: Llama) -> DFlashCheckpoint:
    """Loads a DFlash checkpoint for `target`."""
    return load_parallel("dflash", folder, values, target)


def load_dflash2(folder: Path, values: Mapping[str, Any], target: Llama) -> DFlashCheckpoint:
    """Loads a DFlash2 checkpoint for `target`."""
    return load_parallel("dflash2", folder, values, target)


def load_dspark(folder: Path, values: Mapping[str, Any], target: Llama) -> DFlashCheckpoint:
    """Loads a DSpark checkpoint for `target`."""
    return load_parallel("dspark", folder, values, target)
