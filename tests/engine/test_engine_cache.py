"""The KV cache: what is committed stays, what is not is never seen again."""

import pytest
import torch
from engine_helpers import some_prompt

from engine.cache import BLOCK, KVCache


def numbered(config, rows, first=1):
    """Keys whose every entry is the row's number, so that a moved row is recognised."""
    numbers = torch.arange(first, first + rows).bfloat16()
    return numbers[:, None, None].expand(rows, config.kv_heads, config.head_dim)


@pytest.fixture
def cache(tiny_model):
    cache = KVCache(tiny_model.config, 100)
    for layer in range(tiny_model.config.layers):
        cache.write(layer, numbered(tiny_model.config, 3), -numbered(tiny_model.config, 3))
    cache.commit([0, 1, 2])
    for layer in range(tiny_model.config.layers):
        cache.write(layer, numbered(tiny_model.config, 6, first=11), -numbered(tiny_model.config, 6, first=11))
    return cache


@pytest.mark.parametrize("rows", [[], [0], [0, 1, 2], [0, 1, 2, 3, 4, 5], [0, 2, 5], [1], [3, 4, 5], [0, 1, 3]])
def test_commit_keeps_the_named_rows_in_order(cache, rows):
    cache.commit(rows)
    expected = [1, 2, 3, *(row + 11 for row in rows)]
    assert cache.length == len(expected)
    for store, sign in ((cache.keys, 1), (cache.values, -1)):
        committed = store[:, :, : cache.length]
        assert torch.equal(committed, sign * torch.tensor(expected).bfloat16()[:, None].expand_as(committed))


def test_reset_forgets_everything(cache):
    cache.reset()
    assert cache.length == 0
    assert cache.span(1) == BLOCK


@pytest.mark.parametrize(("asked", "room"), [(1, 64), (64, 64), (65, 128), (100, 128), (2048, 2048)])
def test_capacity_is_rounded_up_to_blocks(tiny_model, asked, room):
    cache = KVCache(tiny_model.config, asked)
    assert cache.capacity == room
    assert cache.keys.shape[2] == cache.values.shape[2] == room


@pytest.mark.parametrize(
    ("length", "rows", "span"), [(0, 1, 64), (63, 1, 64), (63, 2, 128), (64, 1, 128), (127, 1, 128)]
)
def test_attention_reads_whole_blocks(tiny_model, length, rows, span):
    cache = KVCache(tiny_model.config, 128)
    cache.length = length
    assert cache.span(rows) == span


def test_stale_values_are_never_seen(decoder):
    """Whatever stands behind the committed positions, finite and however large, has a weight of exactly zero."""
    prompt, draft = some_prompt(70), some_prompt(5, seed=1)
    decoder.cache.keys.zero_()
    decoder.cache.values.zero_()
    decoder.prefill(prompt, chunk=32)
    clean = decoder.rows(draft)
    decoder.cache.reset()
    for poison in (1e30, -1e30):
        decoder.cache.keys.fill_(poison)
        decoder.cache.values.fill_(poison)
        decoder.prefill(prompt, chunk=32)
        assert torch.equal(decoder.rows(draft), clean)


def test_a_committed_tree_path_continues_like_the_chain_it_is(decoder):
    """Two siblings after the prompt, the second one's child: committing rows 1 and 2 must leave prompt + path."""
    prompt, (first, second, child, later) = some_prompt(61), (10, 20, 30, 40)
    visible = torch.tensor([[True, False, False], [False, True, False], [False, True, True]])
    decoder.prefill(prompt, chunk=64)
    decoder.model.forward(torch.tensor([first, second, child]), torch.tensor([61, 61, 62]), decoder.cache, visible)
    decoder.cache.commit([1, 2])
    after_tree = decoder.model.logits(decoder.rows((later,)))
    decoder.prefill((*prompt, second, child), chunk=64)
    after_chain = decoder.model.logits(decoder.rows((later,)))
    torch.testing.assert_close(after_tree, after_chain, atol=0.1, rtol=0)
    assert after_tree.argmax() == after_chain.argmax()
