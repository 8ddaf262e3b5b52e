"""What the inbox does to the state: aborts end rows, arrivals pass the door and take free rows."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import blocks as pool
from cbjax.core import merging, runlist, sharing
from cbjax.core.control import when
from cbjax.core.inbox import Inbox, door
from cbjax.core.limits import Limits
from cbjax.core.policy import Traits
from cbjax.core.reasons import Refusal
from cbjax.core.rows import NO_REQUEST, NO_ROW, Rows, Status
from cbjax.core.sharing import Shared
from cbjax.core.state import State
from cbjax.core.time import Time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Received:
    """What became of each arrival."""

    rows: Int[Array, "A"]  # its row; NO_ROW if refused or if no row was free
    refusals: Int[Array, "A"]  # Refusal at the door
    max_tokens: Int[Array, "A"]  # output tokens it may have


def vacate(state: State, mask: Bool[Array, "P"], *, aborted: bool = False) -> State:
    """End the rows in `mask`: seat, blocks and row return exactly once.

    Under prefix sharing, what they computed can still be found, as far as it fills blocks and
    `Traits.registers_ended` says so.
    """
    rows = state.rows
    seated = mask & (rows.status == Status.RUNNING)
    if state.blocks.cache is None:
        blocks = pool.release(state.blocks, mask, rows.held)
    else:
        blocks = sharing.release(
            state.blocks, mask, rows.held, state.running,
            partial(leave_behind, rows, state.token_ids, state.system.block_size), aborted,
        )
    return replace(
        state,
        rows=replace(
            rows,
            request=jnp.where(mask, NO_REQUEST, rows.request),
            status=jnp.where(mask, int(Status.FREE), rows.status),
            held=jnp.where(mask, 0, rows.held),
            swapped=jnp.where(mask, 0, rows.swapped),
        ),
        blocks=blocks,
        running=runlist.remove(state.running, seated),
        num_running=state.num_running - jnp.sum(seated),
        swap_free=state.swap_free + jnp.sum(jnp.where(mask, rows.swapped, 0)),
        ending=None if state.ending is None else state.ending & ~mask,
        restarted=None if state.restarted is None else jnp.where(mask, 0, state.restarted),
        finished=state.finished + jnp.sum(mask),
    )


def leave_behind(
    rows: Rows, token_ids: Int[Array, "P C"], block_size: Int[Array, ""], shared: Shared, row
) -> Shared:
    """Register what `Traits.registers_ended` says of the full blocks that a row computed."""
    cache = shared.blocks.cache
    if cache.registers_ended == "nothing":
        return shared
    tokens = rows.computed[row]
    if cache.registers_ended == "computed":

        def register(shared: Shared) -> Shared:
            return sharing.enter(shared, token_ids, row, tokens, block_size)
    else:
        tokens = jnp.minimum(tokens, rows.prompt[row])

        def register(shared: Shared) -> Shared:
            count = tokens // block_size - cache.entered[row]
            return merging.merge(shared, token_ids, row, count, block_size)

    return when(tokens // block_size > cache.entered[row], register, shared)


def abort(state: State, inbox: Inbox) -> tuple[State, Int[Array, "A"]]:
    """End the requests named in the inbox, in whatever phase; unknown handles change nothing.

    Returns the handles that ended: their rows may have new owners before the plan is written.
    """

    def end(carry):
        state, _ = carry
        alive = (state.rows.status != Status.FREE)[:, None]
        named = alive & (state.rows.request[:, None] == inbox.abort[None, :])
        ended = jnp.where(jnp.any(named, axis=0), inbox.abort, NO_REQUEST)
        return vacate(state, jnp.any(named, axis=1), aborted=True), ended

    none = jnp.full(inbox.abort.shape, NO_REQUEST, jnp.int32)
    return when(jnp.any(inbox.abort != NO_REQUEST), end, (state, none))


def receive(
    state: State, inbox: Inbox, limits: Limits, traits: Traits
) -> tuple[State, Received]:
    """Let arrivals through the door and into free rows, behind all that wait."""
    size = inbox.request.shape[0]
    none = Received(
        rows=jnp.full(size, NO_ROW, jnp.int32), refusals=jnp.zeros(size, jnp.int32),
        max_tokens=jnp.zeros(size, jnp.int32),
    )

    def enter(carry):
        old, queue_back, _ = carry
        max_tokens, refusals = door(
            inbox.prompt, inbox.max_tokens, limits, state.system, traits
        )
        arrived = jnp.arange(size) < inbox.count
        refusals = jnp.where(arrived, refusals, int(Refusal.NONE))
        passes = arrived & (refusals == Refusal.NONE)
        rows = _free_rows(old.status == Status.FREE, passes)
        order = queue_back + jnp.cumsum(passes) - 1
        filled = _fill(old, inbox, rows, max_tokens, order)
        received = Received(rows, refusals, jnp.where(arrived, max_tokens, 0))
        return filled, queue_back + jnp.sum(rows != NO_ROW), received

    rows, queue_back, received = when(
        inbox.count > 0, enter, (state.rows, state.queue_back, none)
    )
    # Outside, for the rows that entered; nothing is written if none did.
    target = jnp.where(received.rows != NO_ROW, received.rows, rows.request.shape[0])
    token_ids = state.token_ids.at[target].set(inbox.token_ids, mode="drop")
    return replace(state, rows=rows, queue_back=queue_back, token_ids=token_ids), received


def _free_rows(free: Bool[Array, "P"], passes: Bool[Array, "A"]) -> Int[Array, "A"]:
    """A free row for each request that passes, in order; NO_ROW when they run out."""

    def take(carry):
        rows, free, left = carry
        entry, row = jnp.argmax(left), jnp.argmax(free).astype(jnp.int32)
        return rows.at[entry].set(row), free.at[row].set(False), left.at[entry].set(False)

    rows, _, _ = lax.while_loop(
        lambda carry: jnp.any(carry[2]) & jnp.any(carry[1]), take,
        (jnp.full(passes.shape, NO_ROW, jnp.int32), free, passes),
    )
    return rows


def _fill(old: Rows, inbox: Inbox, rows, max_tokens, order) -> Rows:
    """Write the arrivals into their rows; a free row holds nothing and has nothing in flight."""
    target = jnp.where(rows != NO_ROW, rows, old.request.shape[0])

    def put(field, values):
        return field.at[target].set(values, mode="drop")

    def put_time(field: Time, moment: Time) -> Time:
        return Time(
            put(field.seconds, moment.seconds), put(field.nanoseconds, moment.nanoseconds)
        )

    return replace(
        old,
        request=put(old.request, inbox.request), group=put(old.group, inbox.group),
        status=put(old.status, int(Status.WAITING)), prompt=put(old.prompt, inbox.prompt),
        known=put(old.known, inbox.known), computed=put(old.computed, 0), peak=put(old.peak, 0),
        max_tokens=put(old.max_tokens, max_tokens), predicted=put(old.predicted, inbox.predicted),
        queue_order=put(old.queue_order, order),
        priority=put(old.priority, inbox.priority), preemptions=put(old.preemptions, 0),
        arrival=put_time(old.arrival, inbox.arrival), queued=put_time(old.queued, inbox.arrival),
        deadline=put_time(old.deadline, inbox.deadline),
    )
