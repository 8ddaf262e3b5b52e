"""The run order as a list of rows, kept by compaction: cheaper than a sort every iteration."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.rows import NO_ROW


def remove(running: Int[Array, "S"], mask: Bool[Array, "P"]) -> Int[Array, "S"]:
    """Drop the rows in `mask`; the others close up in their order."""
    seats = running.shape[0]
    stays = (running != NO_ROW) & ~mask[running]
    place = jnp.where(stays, jnp.cumsum(stays) - 1, seats)
    return jnp.full(seats, NO_ROW, jnp.int32).at[place].set(running, mode="drop")


def append(
    running: Int[Array, "S"], count: Int[Array, ""], mask: Bool[Array, "P"],
    order: Int[Array, "P"],
) -> tuple[Int[Array, "S"], Int[Array, ""]]:
    """Add the rows in `mask` behind the last one, smallest `order` first."""
    last = jnp.iinfo(jnp.int32).max

    def add(carry):
        running, count, keys, row = carry
        keys = keys.at[row].set(last)
        return running.at[count].set(row), count + 1, keys, jnp.argmin(keys).astype(jnp.int32)

    keys = jnp.where(mask, order, last)
    running, count, *_ = lax.while_loop(
        # The smallest key is `last` when nothing is left.
        lambda carry: carry[2][carry[3]] != last, add,
        (running, count, keys, jnp.argmin(keys).astype(jnp.int32)),
    )
    return running, count


def append_in_order(
    running: Int[Array, "S"], count: Int[Array, ""], mask: Bool[Array, "P"],
    order: Int[Array, "P"],
) -> tuple[Int[Array, "S"], Int[Array, ""]]:
    """Add the rows in `mask`, whose `order` is 0, 1, 2, ... among them: one scatter, no search."""
    place = jnp.where(mask, count + order, running.shape[0])
    rows = jnp.arange(mask.shape[0], dtype=jnp.int32)
    return running.at[place].set(rows, mode="drop"), count + jnp.sum(mask)


def rank(running: Int[Array, "S"], mask: Bool[Array, "P"], rows: int) -> Int[Array, "P"]:
    """For each running row in `mask`: how many rows of `mask` come before it in the run order."""
    inside = (running != NO_ROW) & mask[running]
    place = jnp.where(running != NO_ROW, running, rows)
    return jnp.zeros(rows, jnp.int32).at[place].set(
        jnp.cumsum(inside) - inside, mode="drop"
    )
