"""How a loaded parallel drafter is held against its naive double: exactly in float32, closely in bfloat16."""

from pathlib import Path

import numpy as np
import torch

from engine.drafters.checkpoint import load_drafter_checkpoint
from engine.drafters.dflash import DFlashSession
from engine.drafters.parallel import DFlashCheckpoint, DFlashDrafter
from engine.models.llama import Llama
from tests.engine.drafters.naive_block import NaiveBlock


def load(folder: Path, target: Llama) -> DFlashCheckpoint:
    found = load_drafter_checkpoint(folder, target)
    assert isinstance(found, DFlashCheckpoint)
    return found


def exact_drafter(folder: Path, target: Llama, candidates: int | None = 0, confidence: float = 0.0) -> DFlashDrafter:
    """The drafter in float32, so that its choices are those of the equations."""
    found = load(folder, target)
    ids, embedding, head = found.tables.ids, found.tables.embedding.float(), found.tables.head.float()
    session = DFlashSession(found.model.float(), embedding, head, ids)
    return DFlashDrafter(session, found.model.config, candidates, confidence)


def some_taps(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


@torch.no_grad()
def assert_agrees(folder: Path, target: Llama, naive: NaiveBlock) -> None:
    """Drafts equal for several anchors and prefixes, committed in uneven steps; logits of bfloat16 close."""
    size = load(folder, target).model.fc.weight.shape[1]
    for seed, rows in enumerate((1, 4, 11)):
        taps, anchor = some_taps(rows, size, seed), 3 + 7 * seed
        drafter = exact_drafter(folder, target)
        for part in taps.split((rows + 1) // 2 if rows > 1 else 1):
            drafter.extend([anchor] * len(part), part)
        expected = naive.draft(taps.double().numpy(), anchor)
        assert drafter.propose(99) == expected
        assert drafter.propose(2) == expected[:2], "a draft does not depend on how much is asked for"
    found = load(folder, target)
    context = found.model.inject(taps.bfloat16(), torch.arange(rows))
    positions = torch.arange(rows, rows + found.model.config.block_size)
    block = found.model.block(found.tables.embedding[torch.tensor([anchor])])[0]
    hidden = found.model(block, positions, context, found.model.masks(positions, rows, context))
    hidden = found.model.drafting_rows(hidden)
    logits = found.model.adjusted(hidden @ found.tables.head.T).double().numpy()
    exact = np.stack([naive.logits(h) for h in naive.hidden(taps.double().numpy(), anchor)])
    error = float(np.linalg.norm(logits - exact) / np.linalg.norm(exact))
    assert error < 0.03
