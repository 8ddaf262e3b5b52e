"""The block pool: block tables, reference counts and a ring of free KV blocks.

Blocks are handed out from the head of the ring and given back at its end, a sequence's last block
first, so that a prefix outlives its tail. Every operation costs by the blocks it moves, not by the
size of the pool: the loops below run as often as there is something to move.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.prefix import empty_cache

NO_BLOCK = -1
_LANES = 64  # new blocks handed out per turn of the loop; one turn is the usual case


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Blocks:
    """KV block bookkeeping for P rows, N blocks and tables of M blocks."""

    tables: Int[Array, "P M"]  # logical -> physical block; stale beyond the blocks held
    refs: Int[Array, "N"]  # sequences that hold the block; 0 = free
    ring: Int[Array, "N"]  # block ids; the free ones start at `head`
    head: Int[Array, ""]
    free: Int[Array, ""]  # free blocks
    # A Cache under prefix sharing, which then keeps the free list instead of the ring; else None.
    cache: Any = None


def empty_blocks(
    rows: int, capacity: int, table: int, usable: Int[Array, ""], content: int = 0,
    registers_ended: str = "computed", free_order: str = "unregistered_first",
) -> Blocks:
    """A whole pool: `usable` free blocks of a capacity of N, tables of M for P rows.

    With `content` > 0 that many token ids of registered blocks are kept, for prefix sharing. With
    tables of length 0 the pool only counts: no block has a name.
    """
    capacity = capacity if table else 0
    return Blocks(
        tables=jnp.full((rows, table), NO_BLOCK, jnp.int32),
        refs=jnp.zeros(capacity, jnp.int32),
        ring=jnp.arange(capacity, dtype=jnp.int32),
        head=jnp.int32(0),
        free=jnp.int32(usable),
        cache=empty_cache(rows, capacity, content, usable, registers_ended, free_order)
        if content else None,
    )


def allocate(
    blocks: Blocks, rows: Int[Array, "S"], held: Int[Array, "S"], need: Int[Array, "S"]
) -> Blocks:
    """Append new blocks to the tables of several rows.

    Args:
        blocks: the pool; must have `sum(need)` free blocks.
        rows: distinct rows that receive blocks; entries with `need` 0 may be anything.
        held: blocks each row holds already.
        need: blocks each row receives.

    Returns:
        The pool with longer tables.
    """
    if not blocks.tables.shape[1]:
        return replace(blocks, free=blocks.free - jnp.sum(need))
    ring_size = blocks.ring.shape[0]
    ends = jnp.cumsum(need)
    starts = ends - need
    total = ends[-1]
    lane = jnp.arange(_LANES)
    entries = jnp.arange(need.shape[0])

    def hand_out(carry):
        tables, refs, base = carry
        number = base + lane
        # Each receiver marks its first lane; the running maximum spreads it over its lanes.
        begins = jnp.where((need > 0) & (ends > base), jnp.maximum(starts - base, 0), _LANES)
        owner = lax.cummax(jnp.zeros(_LANES, jnp.int32).at[begins].max(entries, mode="drop"))
        block = blocks.ring[lax.rem(blocks.head + number, ring_size)]
        live = number < total
        row = jnp.where(live, rows[owner], tables.shape[0])
        column = held[owner] + number - starts[owner]
        tables = tables.at[row, column].set(block, mode="drop")
        refs = refs.at[jnp.where(live, block, ring_size)].set(1, mode="drop")
        return tables, refs, base + _LANES

    tables, refs, _ = lax.while_loop(
        lambda carry: carry[2] < total, hand_out, (blocks.tables, blocks.refs, jnp.int32(0))
    )
    return replace(
        blocks, tables=tables, refs=refs, head=lax.rem(blocks.head + total, ring_size),
        free=blocks.free - total,
    )


def release(blocks: Blocks, mask: Bool[Array, "P"], held: Int[Array, "P"]) -> Blocks:
    """Give back all blocks of the rows in `mask`, each row's last block first.

    Args:
        blocks: the pool.
        mask: rows that lose their blocks.
        held: blocks each row holds.

    Returns:
        The pool. The tables are left alone: what a row does not hold is stale.
    """
    if not blocks.tables.shape[1]:
        return replace(blocks, free=blocks.free + jnp.sum(jnp.where(mask, held, 0)))
    ring_size = blocks.ring.shape[0]
    column = jnp.arange(blocks.tables.shape[1])

    def give_back(carry):
        refs, ring, free, left, row = carry
        inside = column < held[row]
        block = blocks.tables[row, jnp.maximum(held[row] - 1 - column, 0)]
        refs = refs.at[jnp.where(inside, block, ring_size)].add(-1, mode="drop")
        # A shared block stays with its other holders; the rest line up at the end of the ring.
        freed = inside & (refs[jnp.where(inside, block, 0)] == 0)
        ends = jnp.cumsum(freed)
        place = lax.rem(blocks.head + free + ends - 1, ring_size)
        ring = ring.at[jnp.where(freed, place, ring_size)].set(block, mode="drop")
        left = left.at[row].set(False)
        return refs, ring, free + ends[-1], left, jnp.argmax(left)

    left = mask & (held > 0)
    refs, ring, free, _, _ = lax.while_loop(
        # `argmax` names a row of the mask as long as there is one.
        lambda carry: carry[3][carry[4]], give_back,
        (blocks.refs, blocks.ring, blocks.free, left, jnp.argmax(left)),
    )
    return replace(blocks, refs=refs, ring=ring, free=free)
