"""The block pool beside a plain model: lists of block ids and a queue of free ones."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cbjax.core.blocks import allocate, empty_blocks, release

ROWS, BLOCKS, TABLE = 6, 90, 80  # more blocks than one turn of the allocation loop hands out

allocate_jit, release_jit = jax.jit(allocate), jax.jit(release)


class PlainPool:
    """Blocks leave from the head of a queue and return at its end, a row's last one first."""

    def __init__(self, usable: int) -> None:
        self.free = deque(range(usable))
        self.tables: list[list[int]] = [[] for _ in range(ROWS)]

    def allocate(self, rows: list[int], need: list[int]) -> None:
        for row, count in zip(rows, need, strict=True):
            self.tables[row] += [self.free.popleft() for _ in range(count)]

    def release(self, row: int) -> None:
        self.free.extend(reversed(self.tables[row]))
        self.tables[row] = []


@settings(max_examples=150)
@given(usable=st.integers(1, BLOCKS), data=st.data())
def test_the_pool_follows_the_plain_model(usable, data):
    plain = PlainPool(usable)
    blocks = empty_blocks(ROWS, BLOCKS, TABLE, jnp.int32(usable))
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(ROWS)))
            need, left = [], len(plain.free)
            for row in order:
                most = min(left, TABLE - len(plain.tables[row]))
                need.append(data.draw(st.integers(0, most)))
                left -= need[-1]
            held = np.array([len(plain.tables[row]) for row in order], np.int32)
            blocks = allocate_jit(
                blocks, np.array(order, np.int32), held, np.array(need, np.int32)
            )
            plain.allocate(order, need)
        else:
            mask = np.array(data.draw(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS)))
            held = np.array([len(table) for table in plain.tables], np.int32)
            blocks = release_jit(blocks, mask, held)
            for row in np.flatnonzero(mask):
                plain.release(int(row))
        agree(blocks, plain)


def agree(blocks, plain: PlainPool) -> None:
    """Tables, counts, references, and which block comes next."""
    used = [block for table in plain.tables for block in table]
    assert int(blocks.free) == len(plain.free)
    for row, table in enumerate(plain.tables):
        assert np.asarray(blocks.tables)[row, : len(table)].tolist() == table
    refs = np.zeros(BLOCKS, int)
    refs[used] = 1
    assert np.array_equal(blocks.refs, refs)
    places = (int(blocks.head) + np.arange(len(plain.free))) % BLOCKS
    assert np.asarray(blocks.ring)[places].tolist() == list(plain.free)


def test_a_pool_without_tables_counts_alike():
    """Tables of length 0: the same number of free blocks after every verb, and no names."""
    named = empty_blocks(ROWS, BLOCKS, TABLE, jnp.int32(50))
    counted = empty_blocks(ROWS, BLOCKS, 0, jnp.int32(50))
    assert counted.ring.size == counted.refs.size == 0
    rows, held = jnp.arange(ROWS), jnp.zeros(ROWS, jnp.int32)
    for need in ([1, 0, 7, 2, 0, 30], [0, 3, 0, 0, 1, 0]):
        need = jnp.asarray(need)
        named, counted = (allocate(pool, rows, held, need) for pool in (named, counted))
        held = held + need
        assert int(named.free) == int(counted.free)
    mask = jnp.asarray([True, False, False, True, False, True])
    assert int(release(named, mask, held).free) == int(release(counted, mask, held).free)
