"""The prefix cache itself: keys, hits, eviction, and contents that only look alike."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from cbjax.core import prefix, sharing
from cbjax.core.blocks import empty_blocks
from cbjax.core.sharing import Shared

ROWS, BLOCKS, TABLE, SIZE, CONTEXT = 4, 8, 4, 4, 16
KEYS = [[1063020325, 287979827], [1275651064, 4009981291]]


@pytest.fixture
def pool() -> Shared:
    blocks = empty_blocks(ROWS, BLOCKS, TABLE, jnp.int32(BLOCKS), content=BLOCKS * SIZE)
    none = jnp.zeros(ROWS, jnp.int32)
    return Shared(blocks, none, none)


def ids(*tokens):
    return jnp.zeros((ROWS, CONTEXT), jnp.int32).at[:, : len(tokens)].set(jnp.array(tokens))


def stored(pool: Shared, row: int, *tokens) -> Shared:
    """The row owns and has registered the full blocks of these tokens."""
    pool = sharing.grow(pool, row, -(-len(tokens) // SIZE))
    return sharing.enter(pool, ids(*tokens), row, len(tokens), SIZE)


def found(pool: Shared, *tokens) -> list[int]:
    blocks, count, _ = sharing.hits(pool, ids(*tokens), 0, len(tokens), SIZE)
    return np.asarray(blocks)[: int(count)].tolist()


def free_list(pool: Shared) -> list[int]:
    after = np.asarray(pool.blocks.cache.after)
    listed, block = [], after[BLOCKS]
    while block != BLOCKS:
        listed.append(int(block))
        block = after[block]
    assert len(listed) == int(pool.blocks.free)
    return listed


@pytest.mark.parametrize(("length", "blocks"), [(7, 1), (8, 1), (9, 2)])
def test_one_token_is_always_left_to_compute(pool, length, blocks):
    """FAULTS C1: a prompt that is cached to its last token computes its last block again."""
    tokens = range(1, length + 1)
    assert len(found(stored(pool, 0, *tokens), *tokens)) == blocks


def test_a_block_is_found_only_behind_the_same_beginning(pool):
    """FAULTS C6: the second block is alike, the first is not."""
    pool = stored(pool, 0, 1, 2, 3, 4, 5, 6, 7, 8)
    assert found(pool, 9, 9, 9, 9, 5, 6, 7, 8, 1) == []
    assert found(pool, 1, 2, 3, 4, 9, 9, 9, 9, 1) == [0]
    assert found(pool, 1, 2, 3, 4, 5, 6, 7, 8, 1) == [0, 1]


def test_equal_keys_with_other_tokens_are_a_miss(pool, monkeypatch):
    """FAULTS C5: all keys forced to one value."""
    monkeypatch.setattr(
        prefix, "block_keys", lambda tokens, size, blocks: jnp.zeros((blocks, 2), jnp.uint32)
    )
    pool = stored(pool, 0, 1, 2, 3, 4)
    assert found(pool, 1, 2, 3, 4, 5) == [0]
    assert found(pool, 1, 2, 3, 5, 5) == []


def test_keys_are_the_same_in_every_process():
    """FAULTS C6: the constants are fixed, nothing of the process enters."""
    keys = prefix.block_keys(jnp.arange(8), jnp.int32(4), 2)
    assert np.asarray(keys).tolist() == KEYS


def test_a_block_that_is_handed_out_again_is_found_no_more(pool):
    """FAULTS C7: evicted, then reused for other tokens."""
    pool = stored(pool, 0, *range(1, 9))
    pool = sharing.leave(pool, 0, TABLE)
    assert found(pool, *range(1, 10)) == [0, 1]
    pool = sharing.grow(sharing.grow(pool, 1, 4), 2, 3)
    # The last block of a sequence goes before its first.
    assert found(pool, *range(1, 10)) == [0]
    pool = sharing.grow(pool, 3, 1)
    assert found(pool, *range(1, 10)) == []
    assert int(pool.blocks.free) == 0


def test_free_list_order(pool):
    """Registered blocks wait at the end, the last of a sequence first; others are used at once."""
    pool = stored(pool, 0, *range(1, 11))  # two full blocks and a part of a third
    pool = sharing.leave(pool, 0, TABLE)
    assert free_list(pool) == [2, 3, 4, 5, 6, 7, 1, 0]


def test_free_list_in_the_order_of_release(pool):
    """vLLM 0.11: a block that cannot be found again waits like any other."""
    cache = replace(pool.blocks.cache, free_order="oldest_first")
    pool = replace(pool, blocks=replace(pool.blocks, cache=cache))
    pool = stored(pool, 0, *range(1, 11))
    pool = sharing.leave(pool, 0, TABLE)
    assert free_list(pool) == [3, 4, 5, 6, 7, 2, 1, 0]


def test_a_shared_block_is_free_when_its_last_holder_leaves(pool):
    """FAULTS C10: references never fall below 0, and free + used is the pool."""
    pool = stored(pool, 0, *range(1, 9))
    tokens = ids(*range(1, 10))
    blocks, count, free = sharing.hits(pool, tokens, 1, 9, SIZE)
    assert (int(count), int(free)) == (2, 0)
    pool = sharing.attach(pool, 1, blocks, count, SIZE)
    assert int(pool.blocks.free) == BLOCKS - 2
    pool = sharing.leave(pool, 0, TABLE)
    assert int(pool.blocks.free) == BLOCKS - 2
    pool = sharing.leave(pool, 1, TABLE)
    assert int(pool.blocks.free) == BLOCKS
    assert int(jnp.min(pool.blocks.refs)) == 0
    assert sorted(free_list(pool)) == list(range(BLOCKS))
    # A hit takes them out of the middle of the free list again.
    blocks, count, free = sharing.hits(pool, tokens, 2, 9, SIZE)
    assert (int(count), int(free)) == (2, 2)
    pool = sharing.attach(pool, 2, blocks, count, SIZE)
    assert sorted(free_list(pool)) == [2, 3, 4, 5, 6, 7]


def test_what_was_never_computed_is_not_found(pool):
    """A grant that is withdrawn leaves nothing behind (TGI #2489 is the same kind)."""
    pool = stored(pool, 0, *range(1, 9))
    pool = sharing.leave(pool, 0, 1)
    assert found(pool, *range(1, 10)) == [0]


def test_of_two_blocks_with_one_content_the_first_is_found_while_it_lasts(pool):
    pool = stored(stored(pool, 0, 1, 2, 3, 4), 1, 1, 2, 3, 4)
    assert found(pool, 1, 2, 3, 4, 5) == [0]
    cache = prefix.forget(pool.blocks.cache, jnp.int32(0))
    pool = replace(pool, blocks=replace(pool.blocks, cache=cache))
    assert found(pool, 1, 2, 3, 4, 5) == [1]
