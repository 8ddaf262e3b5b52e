"""SGLang's prefill batch: the half computed request first, then the walk over the queue."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from cbjax.core import rules
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW
from cbjax.core.view import View
from cbjax.policies import _sglang_ratio as ratios
from cbjax.policies._sglang_admission import CLIP, Admission, empty_adder
from cbjax.policies._sglang_state import Carried

_UNBOUNDED = 1 << 30


def prefill(knobs: dict, carried: Carried, view: View, rule: Admission, crossing):
    """The walk over the queue behind the half computed request, if there is a prefill at all."""
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
    adder = jax.tree.map(lambda new, old: jnp.where(goes, new, old), charged, adder)
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
    queue = rules.admit_in_order(
        view, queue, rule.offer, walks, _urgency(knobs, carried, view)
    )
    latches = (queue.limited_by == LimitedBy.SEATS) | (queue.limited_by == LimitedBy.BLOCKS)
    no_memory = queue.extra.closed == LimitedBy.BLOCKS
    full |= no_seat | (walks & (latches | no_memory))
    return queue, replace(carried, full=full), goes


def _urgency(knobs: dict, carried: Carried, view: View) -> Int[Array, "P"]:
    """Waiting requests with a smaller number go first; the queue decides among equals."""
    rows = view.rows
    longest = view.system.max_length
    outputs = jnp.where(knobs["order"] == 1, longest - rows.max_tokens, 0)
    sign = jnp.where(knobs["schedule_low_priority_values_first"], 1, -1)
    # Priorities far beyond what is in use would not fit beside the outputs: they are alike.
    reach = lax.div(jnp.int32(_UNBOUNDED), longest + 1)
    priority = jnp.where(knobs["enable_priority_scheduling"], sign * rows.priority, 0)
    sorts = jnp.clip(priority, -reach, reach) * (longest + 1) + outputs
    urgency = jnp.where(knobs["order"] == 1, sorts, priority)
    return jnp.where(knobs["order"] == 2, _shuffled(rows.request, carried.turn), urgency)


def _shuffled(request: Int[Array, "P"], turn: Int[Array, ""]) -> Int[Array, "P"]:
    """A number for each request that looks random and differs in every iteration."""
    number = request.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
    number += turn.astype(jnp.uint32) * jnp.uint32(0x85EBCA77)
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
        number = (number ^ number >> shift) * jnp.uint32(factor)
    return (number >> 1).astype(jnp.int32)
