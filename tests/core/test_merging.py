"""One block for each content, and blocks that can be found apart from those that are free."""

import jax.numpy as jnp
import pytest

from cbjax.core import merging, sharing
from cbjax.core.blocks import empty_blocks
from cbjax.core.sharing import Shared

ROWS, BLOCKS, TABLE, SIZE, CONTEXT = 4, 8, 6, 4, 24


@pytest.fixture
def pool():
    blocks = empty_blocks(ROWS, BLOCKS, TABLE, jnp.int32(BLOCKS), BLOCKS * SIZE, False)
    return Shared(blocks, jnp.zeros(ROWS, jnp.int32), jnp.zeros(ROWS, jnp.int32))


def ids(*tokens):
    """Known tokens of every row: the same ones."""
    return jnp.zeros((ROWS, CONTEXT), jnp.int32).at[:, : len(tokens)].set(jnp.array(tokens))


def stored(pool, row, *tokens):
    """The row computes these tokens, and its full blocks are registered."""
    pool = sharing.grow(pool, row, -(-len(tokens) // SIZE))
    return merging.merge(pool, ids(*tokens), row, len(tokens) // SIZE, SIZE)


def found(pool, *tokens):
    blocks, count, _ = sharing.hits(pool, ids(*tokens), 0, len(tokens), SIZE)
    return blocks[: int(count)].tolist()


def table(pool, row):
    return pool.blocks.tables[row, : int(pool.held[row])].tolist()


def free_list(pool):
    cache, listed = pool.blocks.cache, []
    block = int(cache.after[BLOCKS])
    while block != BLOCKS:
        listed.append(block)
        block = int(cache.after[block])
    return listed


def numbers(pool):
    """Free blocks and, of these, findable ones."""
    return int(pool.blocks.free), int(merging.findable(pool.blocks))


def test_a_block_with_a_content_that_is_there_is_given_up(pool):
    pool = stored(stored(pool, 0, *range(1, 10)), 1, *range(1, 9), 20)
    assert table(pool, 0) == [0, 1, 2] and table(pool, 1) == [0, 1, 5]
    assert pool.blocks.refs.tolist() == [2, 2, 1, 0, 0, 1, 0, 0]
    assert numbers(pool) == (4, 0) and sorted(free_list(pool)) == [3, 4, 6, 7]
    # Where the texts part, both blocks are kept.
    pool = stored(pool, 2, *range(1, 5), 30, 31, 32, 33)
    assert len(set(table(pool, 2)) - {0, 1}) == 1 and table(pool, 2)[0] == 0
    assert numbers(pool) == (3, 0)


def test_a_block_that_nobody_holds_takes_the_place_of_an_equal_one(pool):
    pool = sharing.leave(stored(pool, 0, *range(1, 9)), 0, TABLE)
    assert numbers(pool) == (8, 2)
    pool = stored(pool, 1, *range(1, 9))
    assert table(pool, 1) == [0, 1] and numbers(pool) == (6, 0)
    assert sorted(free_list(pool)) == [2, 3, 4, 5, 6, 7]


def test_only_as_many_blocks_as_are_named_are_registered(pool):
    pool = sharing.grow(pool, 0, 3)
    pool = merging.merge(pool, ids(*range(1, 13)), 0, 1, SIZE)
    assert found(pool, *range(1, 14)) == [0]
    pool = merging.merge(pool, ids(*range(1, 13)), 0, 2, SIZE)
    assert found(pool, *range(1, 14)) == [0, 1, 2]


def test_purge_forgets_what_nobody_holds_and_nothing_else(pool):
    pool = sharing.leave(stored(pool, 0, *range(1, 9)), 0, TABLE)
    pool = stored(pool, 1, 20, 21, 22, 23, 24)
    pool = merging.purge(pool)
    assert numbers(pool) == (6, 0)
    assert found(pool, *range(1, 10)) == [] and found(pool, 20, 21, 22, 23, 24) == [2]
    # All of them can be handed out, and what leaves now is findable behind them again.
    pool = sharing.leave(pool, 1, TABLE)
    assert numbers(pool) == (8, 1) and free_list(pool)[-1] == 2
    assert numbers(merging.purge(merging.purge(pool))) == (8, 0)


def test_discard_forgets_what_nobody_else_holds(pool):
    pool = stored(stored(pool, 0, *range(1, 9)), 1, *range(1, 5), 30, 31, 32, 33)
    pool = merging.discard(pool, 1)
    assert numbers(pool) == (6, 0)
    assert found(pool, *range(1, 10)) == [0, 1]
    assert found(pool, *range(1, 5), 30, 31, 32, 33, 34) == [0]
    pool = merging.discard(pool, 0)
    assert numbers(pool) == (8, 0) and found(pool, *range(1, 10)) == []
    assert sorted(free_list(pool)) == list(range(BLOCKS)) and int(pool.blocks.refs.max()) == 0
