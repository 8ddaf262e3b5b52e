"""SGLang's prefill batch: the half computed request first, then the walk over the queue."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from cbjax.core import rules
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW
from cbjax.core.view import View
from cbjax.policies import _sglang_order as order
from cbjax.policies import _sglang_ratio as ratios
from cbjax.policies._sglang_admission import CLIP, Admission, empty_adder
from cbjax.policies._sglang_state import Carried

_UNBOUNDED = 1 << 30


def prefill(knobs: dict, carried: Carried, view: View, rule: Admission, crossing, pool):
    """The walk over the queue behind the half computed request, if there is a prefill at all.

    Returns the walk, the state, whether the half computed request goes on, and the queue's keys.
    """
    rows, waits = view.rows, jnp.any(view.waiting)
    chunked = carried.chunked != NO_ROW
    priority, checks = knobs["enable_priority_scheduling"], knobs["check_memory"]
    mixed, page = knobs["enable_mixed_chunk"], view.system.block_size
    full = carried.full & ~priority
    batch = jnp.sum(carried.member) + carried.ghosts
    seats = knobs["max_running_requests"] - batch
    wanted = chunked | (waits & ~full)
    no_seat = wanted & ~chunked & (seats <= 0) & ~priority

    decodes = jnp.where(mixed, batch, 0)
    pages = jnp.where(mixed, jnp.sum(crossing), 0)
    taken = jnp.where(checks, jnp.maximum(decodes, pages * page), decodes)
    memory = view.free_blocks * page
    keys = view.rows.queue_order
    if pool is not None:
        asked = wanted & ~no_seat & ~(checks & (pages > view.free_blocks))
        pool, keys = order.sort(knobs, pool, view, rule.tokens, asked)
        view = replace(view, rows=replace(rows, queue_order=keys))
    size = jnp.where(
        knobs["chunked_prefill_size"] > 0, knobs["chunked_prefill_size"], view.iteration_tokens
    )
    row = jnp.maximum(carried.chunked, 0)
    extend = rule.tokens[row] - rows.computed[row]
    adder = empty_adder(
        view, room=memory - taken, now=memory - taken, input=knobs["max_prefill_tokens"] - decodes,
        chunk=jnp.minimum(size, view.iteration_tokens) - decodes, seats=seats, batch=batch,
        estimated=jnp.sum(jnp.where(carried.member, rule.estimate, 0)),
        ends=rule.ends(carried.member | (chunked & (jnp.arange(crossing.shape[0]) == row))),
        pool=pool,
    )
    most = adder.room - ratios.rounded_up(carried.ratio, adder.estimated)
    # The rest of its last page costs nothing.
    most = jnp.where(checks, jnp.maximum(most, lax.rem(page - lax.rem(rows.computed[row], page),
                                                       page)), most)
    most = jnp.minimum(adder.chunk, most)
    stalls = checks & ((pages > view.free_blocks) | (chunked & (most <= 0)))
    opens = wanted & ~no_seat & ~stalls
    goes = opens & chunked
    piece = jnp.where(goes, jnp.clip(most, 0, extend), 0)
    truncated = extend > most
    output = jnp.where(truncated, 0, jnp.minimum(rows.max_tokens[row], CLIP))
    charged = replace(
        rule.charge(adder, piece, output), seats=seats - 1,
        chunked=jnp.where(truncated, row, NO_ROW).astype(jnp.int32),
        # A chunk that fills the budget is not the last word: the next request is asked.
        closed=adder.closed,
    )
    adder = replace(
        jax.tree.map(
            lambda new, old: jnp.where(goes, new, old), replace(charged, pool=None),
            replace(adder, pool=None),
        ),
        pool=pool,
    )
    queue = rules.start_queue(
        view, budget=_UNBOUNDED, seats=_UNBOUNDED, free=view.free_blocks,
        grant=jnp.zeros_like(rows.held).at[row].add(piece), kv_tokens=jnp.zeros_like(rows.held),
        limited_by=jnp.where(
            waits,
            jnp.select(
                [no_seat, ~wanted | (opens & full), stalls],
                [int(LimitedBy.SEATS), int(LimitedBy.FREEZE), int(LimitedBy.BLOCKS)],
                int(LimitedBy.QUEUE_EMPTY),
            ),
            int(LimitedBy.QUEUE_EMPTY),
        ),
        extra=adder,
    )
    walks = opens & ~full
    urgency = order.urgency(knobs, view, carried.turn)
    queue = rules.admit_in_order(view, queue, rule.offer, walks, urgency)
    if pool is not None:
        queue = replace(queue, extra=rule.refuse(view, queue, walks, urgency))
    latches = (queue.limited_by == LimitedBy.SEATS) | (queue.limited_by == LimitedBy.BLOCKS)
    no_memory = queue.extra.closed == LimitedBy.BLOCKS
    full |= no_seat | (walks & (latches | no_memory))
    return queue, replace(carried, full=full), goes, keys
