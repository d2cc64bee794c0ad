"""The lattice of a DFlash drafter: log-probabilities from the equations, and the chain inside it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.base import Lattice
from engine.drafters.dflash import DFlash, DFlashConfig, DFlashSession
from engine.drafters.dflash_body import DraftTables
from engine.drafters.lattice import best_first
from engine.drafters.parallel import DFlashDrafter

CONFIG = DFlashConfig(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=50,
    num_target_layers=5,
    target_layer_ids=(0, 3),
    block_size=6,
    markov_rank=6,
)


def walk(lattice: Lattice) -> list[int]:
    """The greedy walk, ties to the lower index."""
    tokens, row = [], 0
    for ids, edges in zip(lattice.ids, lattice.edges, strict=True):
        row = int(edges[min(row, len(edges) - 1)].argmax())
        tokens.append(int(ids[row]))
    return tokens


def drafter(config: DFlashConfig, seed: int, candidates: int, dtype: torch.dtype) -> tuple[DFlashDrafter, DFlash]:
    torch.manual_seed(seed)
    model = DFlash(config)
    for p in model.parameters():
        p.data = torch.randn(p.shape) * (2 * p.shape[-1] ** -0.5 if p.dim() > 1 else 0.7)
    embedding, head = torch.randn(50, 24).to(dtype), torch.randn(50, 24).to(dtype)
    made = DFlashDrafter(DFlashSession(model.to(dtype), embedding, head), config, candidates)
    made.extend([7] * 9, torch.randn(8, 48).to(dtype))
    return made, model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [0, 6])
@pytest.mark.parametrize("seed", range(4))
def test_the_chain_is_the_greedy_walk(seed: int, rank: int, dtype: torch.dtype) -> None:
    made, _ = drafter(replace(CONFIG, markov_rank=rank), seed, 12, dtype)
    lattice = made.lattice(9, 12)
    assert lattice.ids.shape == (5, 12)
    assert lattice.edges.shape == (5, 12 if rank else 1, 12)
    assert walk(lattice) == made.propose(9)
    assert walk(made.lattice(9, 1)) == made.propose(9)
    assert walk(made.lattice(2, 12)) == made.propose(2)


def scores_after(model: DFlash, hidden: Tensor, embedding: Tensor, head: Tensor, previous: int) -> Tensor:
    """Log-probabilities over the whole vocabulary from the head's equation."""
    a, b = model.markov_head.in_proj.weight, model.markov_head.out_proj.weight
    z = a @ torch.cat((hidden, embedding[previous]))
    return (head @ (hidden + b @ (z * torch.sigmoid(z)))).log_softmax(-1)


def test_edges_are_log_probabilities_given_what_stands_before() -> None:
    _, model = drafter(CONFIG, 3, 50, torch.float32)
    hidden, embedding, head = torch.randn(4, 24), torch.randn(50, 24), torch.randn(50, 24)
    lattice = model.lattice(hidden, torch.tensor([7]), DraftTables(embedding=embedding, head=head), 0, 5)
    for j in range(4):
        before = [7] if j == 0 else lattice.ids[j - 1].tolist()
        for a, token in enumerate(before):
            expected = scores_after(model, hidden[j], embedding, head, token)[lattice.ids[j]]
            torch.testing.assert_close(lattice.edges[j, a], expected, atol=1e-5, rtol=1e-5)
    exact = scores_after(model, hidden[0], embedding, head, 7)
    assert lattice.ids[0].tolist() == exact.topk(5).indices.tolist(), "the best first"


def test_few_candidates_share_the_probability() -> None:
    _, model = drafter(CONFIG, 4, 50, torch.float32)
    hidden, table = torch.randn(4, 24), torch.randn(50, 24)
    lattice = model.lattice(hidden, torch.tensor([7]), DraftTables(embedding=table, head=table), 6, 6)
    torch.testing.assert_close(lattice.edges.exp().sum(-1), torch.ones(4, 6))
    for row, ids in zip(hidden, lattice.ids, strict=True):
        assert set(ids.tolist()) == set((table @ row).topk(6).indices.tolist())


def test_without_a_head_they_are_those_of_the_rows() -> None:
    _, model = drafter(replace(CONFIG, markov_rank=0), 5, 50, torch.float32)
    hidden, table = torch.randn(4, 24), torch.randn(50, 24)
    lattice = model.lattice(hidden, torch.tensor([7]), DraftTables(embedding=table, head=table), 3, 8)
    best = (hidden @ table.T).log_softmax(-1).topk(8)
    assert torch.equal(lattice.ids, best.indices)
    torch.testing.assert_close(lattice.edges[:, 0], best.values)


def test_of_equals_the_lower_index_comes_first() -> None:
    assert best_first(torch.tensor([1.0, 3.0, 3.0, 0.0, 3.0, 2.0]), 4).tolist() == [1, 2, 4, 5]
    assert best_first(torch.tensor([1.0, 2.0]), 9).tolist() == [1, 0]
