"""Samples of one prompt: KV that another of them has computed is taken over, not computed again.

Below the policy, which decides as for that many requests apart: it counts the blocks and tokens
of each, so that no rule of any system has to know of it, and every decision is the same with and
without. What is saved is work and memory that is really used.

Full blocks are held together, by reference count. A block that is full only in part is copied
before the sample writes into it (copy-on-write; the executor copies what the plan names). The
tokens are compared, so a sample may even take what another has answered. One token of each grant
is always computed, so that there are logits.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core.blocks import Blocks
from cbjax.core.control import when
from cbjax.core.rows import NO_GROUP, NO_ROW, Rows, Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Taken:
    """What P rows take over in one iteration."""

    giver: Int[Array, "P"]  # row whose KV it is; NO_ROW where nothing is taken
    tokens: Int[Array, "P"]  # tokens of the grant that need not be computed
    blocks: Int[Array, "P"]  # blocks of the giver that are held together from now on


def take(
    rows: Rows, token_ids: Int[Array, "P C"], running: Int[Array, "S"], admitted: Bool[Array, "P"],
    start: Int[Array, "P"], grant: Int[Array, "P"], block_size: Int[Array, ""], *, holds: bool,
) -> Taken:
    """What each row need not compute of its grant.

    Args:
        rows: after preemptions and admissions, before the grants are in flight.
        token_ids: known tokens of each row.
        running: the run order.
        admitted: rows that took a seat in this iteration.
        start: tokens of each row whose KV exists.
        grant: tokens the policy gives it.
        block_size: of the system.
        holds: static; whether blocks may be held together. If not (the policy shares prefixes and
            handles the pool itself) all are copied.
    """
    none = jnp.zeros_like(grant)
    able = (rows.status == Status.RUNNING) & (rows.group != NO_GROUP)

    def find(_: Taken) -> Taken:
        same = able[:, None] & able[None, :] & (rows.group[:, None] == rows.group[None, :])
        # What was computed before this iteration can be copied and held. Whoever computed most
        # gives; so nobody gives and takes at once.
        done = jnp.where(same & ~admitted[None, :], rows.computed[None, :], NO_ROW)
        first = jnp.argmax(done, axis=1)
        last = start + grant - 1
        reach = jnp.minimum(jnp.minimum(last, jnp.max(done, axis=1)), _alike(token_ids, first))
        takes = able & (reach > start)
        if not holds:
            return _taken(takes, first, reach, start, none)
        # What is computed in this iteration can be held, in whole blocks: the model writes all KV
        # of a layer before it reads any. The group's first in the run order gives.
        place = jnp.full_like(grant, running.shape[0]).at[
            jnp.where(running != NO_ROW, running, grant.shape[0])
        ].set(jnp.arange(running.shape[0]), mode="drop")
        gives = same & (grant > 0)[None, :] & ~takes[None, :]
        leader = jnp.argmin(jnp.where(gives, place[None, :], running.shape[0] + 1), axis=1)
        ahead = jnp.minimum(jnp.minimum(last, (start + grant)[leader]), _alike(token_ids, leader))
        ahead = ahead // block_size * block_size
        joins = able & ~takes & (ahead > start) & (leader != jnp.arange(grant.shape[0]))
        joins &= jnp.any(gives, axis=1) & (rows.held * block_size == start)
        giver, reach = jnp.where(joins, leader, first), jnp.where(joins, ahead, reach)
        blocks = jnp.maximum(reach // block_size - rows.held, 0)
        return _taken(takes | joins, giver, reach, start, blocks)

    return when(
        jnp.any(able & (grant > 1)), find, Taken(jnp.full_like(grant, NO_ROW), none, none)
    )


def _taken(takes, giver, reach, start, blocks) -> Taken:
    return Taken(
        jnp.where(takes, giver, NO_ROW).astype(jnp.int32), jnp.where(takes, reach - start, 0),
        jnp.where(takes, blocks, 0),
    )


def _alike(token_ids: Int[Array, "P C"], other: Int[Array, "P"]) -> Int[Array, "P"]:
    """How many leading tokens each row has in common with another."""
    differ = token_ids != token_ids[other]
    return jnp.where(jnp.any(differ, axis=1), jnp.argmax(differ, axis=1), token_ids.shape[1])


def hold(blocks: Blocks, held: Int[Array, "P"], taken: Taken) -> Blocks:
    """Enter the givers' blocks into the tables, behind the `held` blocks of each row."""

    def enter(blocks: Blocks) -> Blocks:
        column = jnp.arange(blocks.tables.shape[1])
        here = (column >= held[:, None]) & (column < (held + taken.blocks)[:, None])
        tables = jnp.where(here, blocks.tables[taken.giver], blocks.tables)
        target = jnp.where(here, tables, blocks.refs.shape[0])
        return replace(blocks, tables=tables, refs=blocks.refs.at[target].add(1, mode="drop"))

    return when(jnp.any(taken.blocks > 0), enter, blocks)
