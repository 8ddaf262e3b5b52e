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
        running, count, left = carry
        row = jnp.argmin(jnp.where(left, order, last)).astype(jnp.int32)
        return running.at[count].set(row), count + 1, left.at[row].set(False)

    running, count, _ = lax.while_loop(
        lambda carry: jnp.any(carry[2]), add, (running, count, mask)
    )
    return running, count


def rank(running: Int[Array, "S"], mask: Bool[Array, "P"], rows: int) -> Int[Array, "P"]:
    """For each running row in `mask`: how many rows of `mask` come before it in the run order."""
    inside = (running != NO_ROW) & mask[running]
    place = jnp.where(running != NO_ROW, running, rows)
    return jnp.zeros(rows, jnp.int32).at[place].set(jnp.cumsum(inside) - inside, mode="drop")
