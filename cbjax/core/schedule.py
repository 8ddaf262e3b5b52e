"""`schedule`: arrivals and aborts in, the policy's decision carried out, a plan out.

The order is fixed: settle, aborts, arrivals, decide, preempt, refuse, admit, allocate, count.
Nothing here knows a system's rules, and nothing costs by the number of requests in the workload.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from cbjax.core import blocks as pool
from cbjax.core import runlist, samples, time
from cbjax.core.control import when
from cbjax.core.decision import Decision, Requeue, swaps_out
from cbjax.core.inbox import Inbox
from cbjax.core.limits import Limits, blocks_for
from cbjax.core.plan import Plan
from cbjax.core.policy import Policy, Traits
from cbjax.core.reasons import LimitedBy
from cbjax.core.receive import Received, abort, receive, vacate
from cbjax.core.rows import NO_ROW, Status, is_waiting
from cbjax.core.state import State, view


def schedule(policy: Policy, state: State, inbox: Inbox, limits: Limits) -> tuple[State, Plan]:
    """Decide one iteration and carry the decision out.

    Args:
        policy: decides.
        state: the system before the iteration; may be donated.
        inbox: arrivals, aborts, the clock.
        limits: static capacities.

    Returns:
        The system with its grants in flight, and the plan. If `plan.scheduled_tokens` is 0 there is
        nothing to compute before `plan.wake` or the next arrival.
    """
    state = replace(state, clock=inbox.clock)
    if policy.settle is not None:
        seen = view(state, inbox.backlog, limits)
        state = replace(state, blocks=policy.settle(state.policy, seen))
    state, aborted = abort(state, inbox)
    state, received = receive(state, inbox, limits, policy.traits)
    requests = state.rows.request
    # Outside of a compiled program a knob is a Python number, and `~True` is -2.
    knobs = jax.tree.map(jnp.asarray, policy.knobs)
    decision, carried = policy.decide(knobs, state.policy, view(state, inbox.backlog, limits))
    # A number that came from a Python literal is of another type to the compiler: the next call
    # would be compiled anew.
    carried = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.asarray(leaf).dtype), carried)
    state = replace(state, policy=carried, finished=jnp.int32(0))
    resumed = decision.admit & (state.rows.status != Status.WAITING)
    state = _make_room(state, decision, policy.traits)
    state = _seat(state, decision)
    return _grant(state, decision, policy, inbox, limits, received, aborted, requests, resumed)


def _make_room(state: State, decision: Decision, traits: Traits) -> State:
    """Take seat and blocks from preempted rows, and the row itself from refused ones."""

    refused = decision.refuse != 0

    def change(state: State) -> State:
        return vacate(_preempt(state, decision, traits), refused)

    return when(jnp.any(decision.preempt | refused), change, state)


def _preempt(state: State, decision: Decision, traits: Traits) -> State:
    """Put preempted rows back into the queue, their KV dropped or moved to the host pool."""
    rows, lost = state.rows, decision.preempt
    seated = lost if decision.shared is None else lost & (rows.status == Status.RUNNING)
    swapped = lost & swaps_out(decision.requeue)
    behind = (decision.requeue == Requeue.END) | (decision.requeue == Requeue.SWAP_OUT_END)
    count = jnp.sum(lost)
    front = state.queue_front - count
    if decision.preempt_order is None:
        from_front = from_back = runlist.rank(state.running, lost, rows.request.shape[0])
    else:
        from_front, from_back = count - 1 - decision.preempt_order, decision.preempt_order
    key = jnp.select(
        [decision.requeue == Requeue.KEPT, behind],
        [rows.queue_order, state.queue_back + from_back],
        front + from_front,
    )
    if decision.shared is not None:
        # A row may find a prefix, take a seat and lose it again in one decision.
        found = jnp.where(lost, decision.shared.cached, 0)
        rows = replace(
            rows, computed=rows.computed + found,
            held=rows.held + found // state.system.block_size,
        )
    restarts = lost & ~swapped & traits.restarts_outputs
    if state.restarted is not None:
        made = jnp.where(restarts, rows.known - rows.prompt, 0)
        state = replace(state, restarted=state.restarted + made)
    moved = jnp.where(swapped, rows.held, 0)
    if state.newest is not None and state.ending is not None:
        dropped = seated & state.newest
        rows = replace(rows, known=rows.known - dropped, computed=rows.computed - dropped)
        state = replace(state, ending=state.ending & ~lost)
    return replace(
        state,
        rows=replace(
            rows,
            prompt=jnp.where(restarts, rows.known, rows.prompt),
            status=jnp.select(
                [swapped, lost], [int(Status.SWAPPED), int(Status.PREEMPTED)], rows.status
            ),
            computed=jnp.where(lost & ~swapped, 0, rows.computed),
            held=jnp.where(lost, 0, rows.held),
            swapped=rows.swapped + moved,
            queue_order=jnp.where(lost, key, rows.queue_order),
            preemptions=rows.preemptions + lost,
            queued=time.select(lost, state.clock, rows.queued),
        ),
        # A policy that shares prefixes has taken the blocks already.
        blocks=pool.release(state.blocks, lost, rows.held)
        if decision.shared is None
        else state.blocks,
        running=runlist.remove(state.running, lost),
        num_running=state.num_running - jnp.sum(seated),
        queue_front=front,
        queue_back=state.queue_back + count,
        swap_free=state.swap_free - jnp.sum(moved),
    )


def _seat(state: State, decision: Decision) -> State:
    """Append admitted rows to the run order, after any new order of the others."""
    running = state.running if decision.running is None else decision.running
    rows = state.rows
    if decision.queue_order is not None:
        waiting = is_waiting(rows.status) & ~decision.preempt
        order = jnp.where(waiting, decision.queue_order, rows.queue_order)
        rows = replace(rows, queue_order=order)
        state = replace(
            state, queue_back=jnp.maximum(state.queue_back, jnp.max(order) + 1),
            queue_front=jnp.minimum(state.queue_front, jnp.min(order)),
        )
    if decision.run_order is not None:
        running = decision.run_order
        num_running = state.num_running + jnp.sum(decision.admit)
    else:
        if decision.admit_order is None:
            append, order = runlist.append, rows.queue_order
        else:
            append, order = runlist.append_in_order, decision.admit_order
        running, num_running = append(running, state.num_running, decision.admit, order)
    back = decision.admit & decision.swap_in
    returned = jnp.where(back, rows.swapped, 0)
    rows = replace(
        rows,
        status=jnp.where(decision.admit, int(Status.RUNNING), rows.status),
        swapped=rows.swapped - returned,
    )
    return replace(
        state, rows=rows, running=running, num_running=num_running,
        swap_free=state.swap_free + jnp.sum(returned),
    )


def _grant(
    state: State, decision: Decision, policy: Policy, inbox: Inbox, limits: Limits,
    received: Received, aborted, requests, resumed,
):
    """Allocate KV, put the grants in flight, and write the plan."""
    old, running = state.rows, state.running
    seated = running != NO_ROW
    row = jnp.where(seated, running, 0)

    def along(values):
        return jnp.where(seated, values[row], 0)

    # Row by row rather than along the run order: nothing has to be scattered back.
    runs = old.status == Status.RUNNING
    grant = asked = jnp.where(runs, decision.grant, 0)
    shared = decision.shared
    cached = None if shared is None else jnp.where(decision.admit, shared.cached, 0)
    start = old.computed if cached is None else old.computed + cached
    taken = None
    if limits.shares_samples:
        taken = samples.take(
            old, state.token_ids, running, decision.admit, start, grant, state.system.block_size,
            holds=shared is None,
        )
        start, grant = start + taken.tokens, grant - taken.tokens
    computed = start + grant
    owned = jnp.where(runs, blocks_for(decision.kv_tokens, state.system.block_size), 0)
    more = jnp.maximum(owned - old.held, 0)
    rows = replace(
        old, computed=computed, peak=jnp.maximum(old.peak, computed), in_flight=grant,
        held=old.held + more if shared is None else shared.held,
    )
    sampled = (grant > 0) & (computed == old.known)
    fresh = jnp.clip(computed - jnp.maximum(old.peak, start), 0, grant)
    prefills = (grant > 0) & (
        (asked > 1) | (computed < old.known) | (old.known == old.prompt)
    )
    if shared is not None:
        blocks = shared.blocks
    elif taken is None:
        blocks = pool.allocate(state.blocks, row, along(old.held), along(more))
    else:
        blocks = pool.allocate(
            state.blocks, row, along(old.held + taken.blocks), along(more - taken.blocks)
        )
        blocks = samples.hold(blocks, old.held, taken)
    grants, prefilling = along(grant), along(prefills) > 0
    waiting = is_waiting(rows.status)
    num_waiting = jnp.sum(waiting)
    live_tokens = jnp.sum(jnp.where(runs, computed, 0))
    if shared is not None or taken is not None:
        # What several rows share is full, and counts once.
        doubled = jnp.sum(jnp.maximum(blocks.refs - 1, 0)) * state.system.block_size
        live_tokens = live_tokens - doubled
    unseen = (decision.limited_by == LimitedBy.QUEUE_EMPTY) & (inbox.backlog > 0)
    plan = Plan(
        running=running, grants=grants, fresh=along(fresh),
        prefilling=prefilling, requests=requests, samples=sampled,
        # Its position was computed before: a preemption took the token back.
        repeats=sampled & (computed <= old.peak) if policy.traits.drops_in_flight else None,
        admitted=decision.admit, resumed=resumed, cached=cached, preempted=decision.preempt,
        preempt_order=decision.preempt_order,
        swapped_out=decision.preempt & swaps_out(decision.requeue),
        swapped_in=decision.admit & decision.swap_in, taken=taken, refused=decision.refuse,
        entered=received.rows, turned_away=received.refusals, max_tokens=received.max_tokens,
        aborted_requests=aborted, scheduled_tokens=jnp.sum(grants),
        prefill_tokens=jnp.sum(jnp.where(prefilling, grants, 0)),
        extra_tokens=decision.extra_tokens, num_sequences=jnp.sum(grants > 0),
        num_running=state.num_running, num_waiting=num_waiting, backlog=inbox.backlog,
        free_rows=jnp.sum(rows.status == Status.FREE), free_blocks=blocks.free,
        live_tokens=live_tokens, queue_order=rows.queue_order,
        waiting=waiting,
        limited_by=jnp.where(unseen, int(LimitedBy.ROWS), decision.limited_by),
        wake=decision.wake,
    )
    return replace(state, rows=rows, blocks=blocks), plan


schedule_jit = jax.jit(schedule, static_argnames=("limits",), donate_argnames=("state",))
