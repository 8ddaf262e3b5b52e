"""The writes of a batch as runs: all tokens that write into one group of rows of one block.

A TPU moves whole tiles of rows between HBM and VMEM, so a row is written by fetching the tiles
around it and putting them back. A run does so once for all its tokens, and no two runs touch the
same rows, whatever the order of the tokens.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int


class Runs(NamedTuple):
    """Runs in ascending order of place; entries from `live` on mean nothing."""

    tokens: Int[Array, "T"]  # ordered by place, padding at the end
    first: Int[Array, "T+1"]  # where each run begins in `tokens`, then where the last one ends
    live: Int[Array, ""]


def runs(
    write_blocks: Array, write_offsets: Array, num_blocks: int, block_size: int, rows: int
) -> Runs:
    """Order tokens by the group of `rows` rows that they write into.

    Args:
        write_blocks, write_offsets: `[T]`; outside of the cache on padding.
        num_blocks, block_size: N, B.
        rows: of one group; divides B.
    """
    inside = (write_blocks >= 0) & (write_blocks < num_blocks)
    inside &= (write_offsets >= 0) & (write_offsets < block_size)
    nowhere = num_blocks * (block_size // rows)
    group = write_blocks * (block_size // rows) + write_offsets // rows
    group = jnp.where(inside, group, nowhere)
    tokens = jnp.argsort(group)
    group = group[tokens]
    fresh = jnp.concatenate([jnp.ones(1, bool), group[1:] != group[:-1]]) & (group < nowhere)
    length = group.shape[0]
    place = jnp.where(fresh, jnp.cumsum(fresh) - 1, length + 1)
    first = jnp.full(length + 1, jnp.sum(inside), jnp.int32)
    first = first.at[place].set(jnp.arange(length, dtype=jnp.int32), mode="drop")
    return Runs(tokens.astype(jnp.int32), first, jnp.sum(fresh).astype(jnp.int32))
