"""Who makes room: running rows are served one after another, and victims go when blocks lack.

Where the victim is always the last running row, two prefix sums answer. Any other victim may have
been served before in the same iteration, so its grant has to be taken back: a walk, one turn per
row or victim, taken only when blocks run out.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import sharing
from cbjax.core.control import when
from cbjax.core.limits import blocks_for
from cbjax.core.rules import fill_in_order
from cbjax.core.sharing import Shared
from cbjax.core.view import View


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Served:
    """The running rows, in run order, after everyone had a turn."""

    grant: Int[Array, "S"]
    stays: Bool[Array, "S"]  # seated rows that were not preempted
    order: Int[Array, "S"]  # order of preemption among the others
    free: Int[Array, ""]  # free blocks left
    budget: Int[Array, ""]  # tokens left
    preempted: Int[Array, ""]
    shared: Shared | None = None  # the pool, if prefixes are shared


def survivors(
    need: Int[Array, "S"], freed: Int[Array, "S"], free: Int[Array, ""], seated: Bool[Array, "S"]
) -> Int[Array, ""]:
    """How many running rows keep their seat when the last ones make room for the first.

    The largest n for which the blocks that the first n need are covered by the free blocks and
    those that the others give back: the same answer as preempting the last running row again and
    again until the next one fits (PagedAttention, section 4.5), in two prefix sums.

    Args:
        need: blocks each row lacks for its tokens, in run order.
        freed: blocks each row would give back.
        free: free blocks.
        seated: entries that name a row.
    """

    def some():
        total = jnp.sum(freed)
        fits = jnp.cumsum(need) <= free + total - jnp.cumsum(freed)
        return jnp.sum(seated & fits)

    # Nearly always everything fits.
    return lax.cond(jnp.sum(need) <= free, lambda: jnp.sum(seated), some)


def last_in_line(view: View, want: Int[Array, "S"], budget: Int[Array, ""]) -> Served:
    """Give each running row what it wants of the budget; when blocks lack, the last one goes.

    Args:
        view: the table.
        want: tokens each row would take, in run order.
        budget: tokens of the iteration.

    Returns:
        Who got what; the last running row goes first.
    """
    computed = view.in_run_order(view.rows.computed)
    held = view.in_run_order(view.rows.held)
    grant = fill_in_order(want, budget)
    need = jnp.maximum(blocks_for(computed + grant, view.system.block_size) - held, 0)
    need = jnp.where(grant > 0, need, 0)
    keep = survivors(need, view.in_run_order(view.freed), view.free_blocks, view.seated)
    stays = jnp.arange(need.shape[0]) < keep
    grant = jnp.where(stays, grant, 0)
    return Served(
        grant=grant, stays=stays, order=view.num_running - 1 - jnp.arange(want.shape[0]),
        # Without what victims give back: an iteration that preempts admits nothing.
        free=view.free_blocks - jnp.sum(jnp.where(stays, need, 0)),
        budget=budget - jnp.sum(grant), preempted=view.num_running - keep,
    )


def serve_in_turn(
    view: View, want: Int[Array, "S"], budget: Int[Array, ""], urgency: Int[Array, "S"],
    shared: Shared | None = None, registers: bool = True,
) -> Served:
    """Give each running row what it wants of the budget; when blocks lack, the least urgent goes.

    Args:
        view: the table.
        want: tokens each row would take, in run order.
        budget: tokens of the iteration.
        urgency: smaller = more urgent, in run order; among equals the one that queued last goes.
        shared: the pool, if prefixes are shared: then every row takes its blocks.
        registers: static; it registers them at once, before they are computed.

    Returns:
        Who got what. A victim served earlier in this iteration returns tokens and blocks; a row
        that is its own victim ends the round. Rows behind the end keep their seat without tokens.
    """
    computed = view.in_run_order(view.rows.computed)
    held = view.in_run_order(view.rows.held)
    block_size = view.system.block_size
    nobody = jnp.zeros_like(want)

    def in_turn():
        start = Served(
            nobody, view.seated, nobody, view.free_blocks, jnp.int32(budget), jnp.int32(0), shared
        )
        last = view.num_running
        return lax.while_loop(
            lambda carry: (carry[1] < last) & (carry[0].budget > 0),
            _turn(view, want, computed, urgency, registers),
            (start, jnp.int32(0), held, jnp.int32(0)),
        )[0]

    if shared is not None:
        # What a row takes from the pool may be what another would have found.
        return in_turn()
    grant = fill_in_order(want, budget)
    need = jnp.where(grant > 0, jnp.maximum(blocks_for(computed + grant, block_size) - held, 0), 0)
    at_once = Served(
        grant, view.seated, nobody, view.free_blocks - jnp.sum(need), budget - jnp.sum(grant),
        jnp.int32(0),
    )

    return lax.cond(jnp.sum(need) <= view.free_blocks, lambda: at_once, in_turn)


def _turn(view: View, want, computed, urgency, registers: bool):
    """One row is served, or one victim goes."""
    queued = view.in_run_order(view.rows.queue_order)
    block_size, least = view.system.block_size, jnp.iinfo(jnp.int32).min

    def turn(carry):
        served, index, held, asked = carry
        # A row does not grow by what its own victims return; rows behind it do.
        tokens = jnp.where(asked > 0, asked, jnp.minimum(want[index], served.budget))
        asked = tokens
        need = jnp.maximum(blocks_for(computed[index] + tokens, block_size) - held[index], 0)
        here = served.stays[index]
        fits = here & (need <= served.free)
        victims = served.stays & (urgency == jnp.max(jnp.where(served.stays, urgency, least)))
        victim = jnp.argmax(jnp.where(victims, queued, least))
        goes = here & ~fits
        tokens, need = jnp.where(fits, tokens, 0), jnp.where(fits, need, 0)
        back = jnp.where(goes, served.grant[victim], 0)
        room = jnp.where(goes, held[victim], 0)
        grant = served.grant.at[index].add(tokens).at[victim].add(-back)
        served = replace(
            served, grant=grant, stays=served.stays.at[victim].set(served.stays[victim] & ~goes),
            order=served.order.at[victim].set(
                jnp.where(goes, served.preempted, served.order[victim])
            ),
            free=served.free - need + room, budget=served.budget - tokens + back,
            preempted=served.preempted + goes,
        )
        held = held.at[index].add(need).at[victim].add(-room)
        if served.shared is not None:
            after = _on_pool(
                view, served.shared, view.running[index], computed[index] + tokens, need,
                view.running[victim], computed[victim], fits, goes, registers,
            )
            served = replace(served, shared=after, free=after.blocks.free)
        # Its own victim: nobody behind it is served in this iteration.
        after = jnp.where(goes & (victim == index), view.num_running, index + ~goes)
        return served, after.astype(jnp.int32), held, jnp.where(goes, asked, 0)

    return turn


def _on_pool(
    view: View, shared: Shared, row, tokens, need, victim, computed, fits, goes, registers: bool
):
    """The same turn on the pool: the row takes and registers blocks, or the victim loses its."""
    block_size = view.system.block_size
    ids = view.token_ids

    def serve(shared: Shared) -> Shared:
        grown = sharing.grow(shared, row, need)
        if not registers:
            return grown
        full = tokens // block_size > shared.blocks.cache.entered[row]
        return when(
            full, lambda pool: sharing.enter(pool, ids, row, tokens, block_size), grown
        )

    shared = when(fits, serve, shared)
    # Blocks of a grant that is withdrawn are registered but will not be computed.
    return when(
        goes, lambda pool: sharing.leave(pool, victim, computed // block_size), shared
    )
