"""The forward pass: transformers' logits, draft trees as their paths, and rows that do not depend on each other."""

import random

import pytest
import torch
from engine_helpers import assert_same_logits, some_prompt, write_variant
from transformers import LlamaForCausalLM

from engine.loop import Decoder
from engine.weights.checkpoint import interleave, load_checkpoint


@pytest.fixture(scope="module")
def reference(tiny_folder):
    return LlamaForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)


def chunked_logits(decoder, prompt, chunk):
    """[len(prompt), vocab]: the whole prompt in passes of `chunk` rows."""
    decoder.cache.reset()
    parts = []
    for start in range(0, len(prompt), chunk):
        hidden = decoder.rows(prompt[start : start + chunk])
        decoder.cache.commit(list(range(len(hidden))))
        parts.append(decoder.model.logits(hidden))
    return torch.cat(parts)


@pytest.mark.parametrize("length", [1, 2, 17, 63, 64, 65, 200])
def test_logits_are_those_of_transformers(decoder, reference, length):
    prompt = some_prompt(length)
    assert_same_logits(chunked_logits(decoder, prompt, 64), reference(torch.tensor([prompt])).logits[0])


@pytest.mark.parametrize(
    "variant",
    [
        {"kv_heads": 4},
        {"kv_heads": 1},
        {"tied": False},
        {"tied": False, "kv_heads": 1, "shards": 3},
    ],
)
def test_logits_of_other_shapes_are_those_of_transformers(tmp_path, variant):
    folder = write_variant(tmp_path / "model", **variant)
    prompt = some_prompt(70, seed=3)
    expected = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([prompt])).logits[0]
    assert_same_logits(chunked_logits(Decoder(load_checkpoint(folder), 128), prompt, 33), expected)


def test_interleaved_rows_rotate_to_the_same_scores():
    """Public rotation of halves against rotation of neighbours, in double precision, at every pair of positions."""
    heads, dim, hidden, length = 3, 16, 24, 40
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(heads * dim, hidden, generator=generator).double() for _ in range(2))
    x = torch.randn(length, hidden, generator=generator).double()
    angle = torch.arange(length).double()[:, None] * 10000.0 ** -(torch.arange(0, dim, 2).double() / dim)

    def halves(weight):
        rows = (x @ weight.T).view(length, heads, dim)
        left, right = rows.chunk(2, dim=-1)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

    def neighbours(weight):
        rows = (x @ interleave(weight, dim).T).view(length, heads, dim // 2, 2)
        turned = torch.view_as_complex(rows) * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.view_as_real(turned).flatten(2)

    def scores(rotate):
        return torch.einsum("ihd,jhd->hij", rotate(query), rotate(key))

    torch.testing.assert_close(scores(neighbours), scores(halves), atol=1e-10, rtol=0)


def random_tree(nodes, rng):
    """Parents (-1 for the first node) in an order where parents come first."""
    return [-1, *(rng.randrange(node) for node in range(1, nodes))]


def path_to(node, parents):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prefix", [5, 60])
def test_a_tree_in_one_pass_equals_each_path_alone(decoder, seed, prefix):
    rng = random.Random(seed)
    parents = random_tree(14, rng)
    tokens = some_prompt(14, seed=seed + 100)
    paths = [path_to(node, parents) for node in range(14)]
    visible = torch.zeros(14, 14, dtype=torch.bool)
    for node, path in enumerate(paths):
        visible[node, path] = True
    decoder.prefill(some_prompt(prefix, seed), chunk=64)
    positions = torch.tensor([prefix + len(path) - 1 for path in paths])
    tree = decoder.model.logits(decoder.model.forward(torch.tensor(tokens), positions, decoder.cache, visible))
    leaves = set(range(14)) - set(parents)
    for path in (paths[leaf] for leaf in leaves):
        alone = decoder.model.logits(decoder.rows(tuple(tokens[node] for node in path)))
        torch.testing.assert_close(tree[path], alone, atol=0.1, rtol=0)
        assert torch.equal(tree[path].argmax(-1), alone.argmax(-1))


def test_a_chain_mask_given_as_a_tree_changes_nothing(decoder):
    decoder.prefill(some_prompt(30), chunk=64)
    tokens = some_prompt(9, seed=2)
    chain = torch.ones(9, 9, dtype=torch.bool).tril()
    as_tree = decoder.model.forward(torch.tensor(tokens), torch.arange(30, 39), decoder.cache, chain)
    assert torch.equal(as_tree, decoder.rows(tokens))


@pytest.mark.parametrize("chunk", [2, 3, 8, 16, 33, 64, 133])
def test_rows_do_not_depend_on_how_many_come_with_them(decoder, chunk):
    prompt = some_prompt(133, seed=5)
    one_row = chunked_logits(decoder, prompt, 1)
    assert_same_logits(chunked_logits(decoder, prompt, chunk), one_row)


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_prefill_gives_the_logits_of_the_last_prompt_token(decoder, chunk):
    prompt = some_prompt(100, seed=6)
    expected = chunked_logits(decoder, prompt, 100)[-1:]
    torch.testing.assert_close(decoder.prefill(prompt, chunk), expected, atol=0.1, rtol=0)
    assert decoder.cache.length == 100


def test_a_later_token_does_not_change_earlier_rows(decoder):
    prompt = some_prompt(40, seed=8)
    before = chunked_logits(decoder, prompt, 40)
    after = chunked_logits(decoder, (*prompt[:-1], (prompt[-1] + 1) % 256), 40)
    assert torch.equal(before[:-1], after[:-1])
    assert not torch.equal(before[-1], after[-1])
