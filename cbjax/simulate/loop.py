"""The simulator's loop: arrivals, receive, schedule, cost, commit, under a virtual clock.

The verbs are those of the engine; what differs is that a cost model tells how long an iteration
takes and that the loop is compiled as a whole. A turn is one iteration, and behind it a leap if the
policy allows one. Nothing in a turn depends on the number of requests.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.commit import commit
from cbjax.core.control import when
from cbjax.core.inbox import Inbox
from cbjax.core.limits import blocks_for
from cbjax.core.plan import Emitted, Plan
from cbjax.core.policy import Policy
from cbjax.core.reasons import FinishReason
from cbjax.core.rows import NO_REQUEST, NO_ROW, Rows, Status, is_waiting
from cbjax.core.schedule import schedule
from cbjax.core.state import State
from cbjax.core.time import Time
from cbjax.simulate import book, compiler, leap, log, stream
from cbjax.simulate.histogram import count_alike
from cbjax.simulate.pace import Pace, durations
from cbjax.simulate.run import PATIENCE, Run, Shape, is_done, outside
from cbjax.simulate.stream import Stream
from cbjax.simulate.work import Work


def advance(policy: Policy, pace: Pace, run: Run, leaps, shape: Shape) -> Run:
    """Turns until all requests have ended, the log is full or the call is long enough.

    Pure and jit-able; `leaps` False takes one iteration a turn in the same program.
    """
    run = replace(run, turns=jnp.int32(0), rows=jnp.int32(0))

    def goes_on(run: Run):
        room = run.turns < shape.turns
        if shape.rows:
            room &= run.rows < shape.rows - shape.lanes
        return room & ~is_done(run) & (run.idle < PATIENCE)

    def turn(run: Run) -> Run:
        run = _iteration(policy, pace, run, shape)
        if shape.lanes and policy.steady is not None and not policy.traits.shares:
            run = _leap(policy, pace, run, leaps, shape)
        return replace(run, turns=run.turns + 1)

    return lax.while_loop(goes_on, turn, run)


@cache
def compiled_advance() -> Callable[..., Run]:
    """`advance`, compiled as suits the device; the run is donated."""
    return jax.jit(
        advance, static_argnames=("shape",), donate_argnames=("run",),
        compiler_options=compiler.options(),
    )


def _iteration(policy: Policy, pace: Pace, run: Run, shape: Shape) -> Run:
    """One iteration, or a step of the clock if there is nothing to compute."""
    limits, state = shape.limits, run.state
    free = jnp.sum(state.rows.status == Status.FREE)
    alive = limits.rows - free + run.arrived - run.first
    upcoming = stream.moment_at(run.stream, run.arrived)
    waits = (alive == 0) & time.before(state.clock, upcoming) & (upcoming.seconds < _never())
    clock = time.select(waits, upcoming, state.clock)
    ending = jnp.int32(0) if state.ending is None else jnp.sum(state.ending)
    requests, arrived = stream.arrive(
        run.stream, run.arrived, alive, clock, limits.inbox, shape.closed
    )
    # Who has ended but is still looked at has left, as far as whoever sends can tell.
    offered = jnp.minimum(jnp.minimum(free + ending, limits.inbox), arrived - run.first)
    inbox = stream.inbox_of(
        requests, run.first, offered, arrived - run.first - offered, clock, limits
    )
    state, plan = schedule(policy, state, inbox, limits)
    total = plan.scheduled_tokens + plan.extra_tokens
    executes = (total > 0) | (ending > 0)

    work = _work(plan, state, run.iteration, total, max(shape.lanes, 1))
    spent, rung = durations(pace, work, run.compiled, shape.shaped)
    spent = jax.tree.map(lambda part: part[0], spent)
    start = time.add(clock, pace.host)
    end = time.select(
        executes, time.add(start, spent), _sleep(plan, clock, requests, arrived)
    )
    run = replace(run, stream=requests, arrived=arrived)
    run = _take_in(run, plan, state.rows, inbox, clock)
    run = _note_grants(run, plan, state.rows, start, executes)
    if state.token_ids.shape[1]:
        tokens = stream.answer_token(state.rows.request, state.outputs)
    else:
        tokens = jnp.zeros(limits.rows, jnp.int32)
    idle = replace(state, clock=end)
    state, emitted = commit(state, plan, tokens, jnp.zeros(limits.rows, bool), end)
    # Without work nothing is committed: only the clock moves on.
    state = replace(
        state, last_kind=jnp.where(executes, state.last_kind, idle.last_kind),
        last_duration=time.select(executes, state.last_duration, idle.last_duration),
        newest=None if state.newest is None or idle.newest is None
        else jnp.where(executes, state.newest, idle.newest),
    )
    run = replace(run, state=state)
    run, finished = _note_tokens(policy, run, plan, emitted, end, shape)
    if shape.shaped:
        stalls = executes & ~run.compiled[rung[0]] & (pace.compile_s > 0)
        run = replace(
            run, compiled=run.compiled.at[rung[0]].set(run.compiled[rung[0]] | executes)
        )
    else:
        stalls = jnp.bool_(False)
    reseats = jnp.any(plan.admitted | plan.preempted)
    if shape.rows:
        run = replace(run, log=log.write_one(
            run.log, run.rows, plan, start, spent, stalls, finished, executes
        ))
        run = _write_page(run, plan, emitted, clock, end)
    moved = (total > 0) | reseats | jnp.any(plan.refused != 0)
    moved |= jnp.any(plan.entered != NO_ROW) | jnp.any(plan.turned_away != 0)
    sleeps = plan.wake.seconds < _never()
    stuck = ~moved & ~sleeps & (plan.num_waiting + plan.num_running > 0)
    return replace(
        run, iteration=run.iteration + executes, rows=run.rows + (executes | reseats),
        idle=jnp.where(stuck, run.idle + 1, 0), limited_by=plan.limited_by,
    )


def _never() -> int:
    return np.iinfo(np.int32).max


def _sleep(plan: Plan, clock: Time, requests: Stream, arrived) -> Time:
    """When to look again if nothing was computed; a step that only moved requests: at once."""
    upcoming = stream.moment_at(requests, arrived)
    until = time.select(time.before(upcoming, plan.wake), upcoming, plan.wake)
    later = (plan.wake.seconds < _never()) & time.before(clock, until)
    return time.select(later, until, clock)


def _work(plan: Plan, state: State, iteration, total, lanes: int) -> Work:
    """The plan's work, in each of K lanes: the same program times a leap."""
    rows = state.rows
    grant = rows.in_flight
    decodes = plan.prefill_tokens == 0
    context = jnp.sum(jnp.where(grant > 0, rows.computed, 0))
    middle = rows.computed.astype(jnp.float32) - 0.5 * (grant - 1).astype(jnp.float32)
    pairs = jnp.sum(grant.astype(jnp.float32) * middle)
    back = blocks_for(rows.computed - grant, state.system.block_size)
    moved = jnp.sum(jnp.where(plan.swapped_out, rows.swapped, 0))
    moved += jnp.sum(jnp.where(plan.swapped_in, back, 0))
    return Work(*(
        jnp.broadcast_to(value, lanes) for value in (
            iteration, total, plan.prefill_tokens, plan.num_sequences, context,
            # Of decodes the same number, without the rounding of a sum.
            jnp.where(decodes, context.astype(jnp.float32), pairs), moved,
        )
    ))


def _take_in(run: Run, plan: Plan, rows: Rows, inbox: Inbox, clock: Time) -> Run:
    """Who entered a row, who was turned away at the door, and whom the policy refused."""
    size, window = run.notes.output.shape[0], plan.entered.shape[0]

    def arrivals(carry):
        notes, kept, _, _ = carry
        place = jnp.where(plan.entered != NO_ROW, plan.entered, size)
        mask = jnp.zeros(size, bool).at[place].set(True, mode="drop")
        placed = (plan.entered != NO_ROW) | (plan.turned_away != 0)
        place = jnp.arange(window)
        # Whoever found no row stays outside, and so does all that is behind it.
        taken = jnp.minimum(jnp.min(jnp.where(placed, window, place)), inbox.count)
        refusals = jnp.where(place < taken, plan.turned_away, 0)
        kept = when(
            jnp.any(refusals != 0), lambda kept: book.keep_refused(
                kept, inbox.request, refusals, inbox.arrival, clock
            ), kept,
        )
        return book.enter(notes, mask, clock), kept, taken, refusals != 0

    nobody = jnp.zeros(window, bool)
    notes, kept, taken, turned_away = when(
        inbox.count > 0, arrivals, (run.notes, run.kept, jnp.int32(0), nobody)
    )
    refused = plan.refused != 0
    sent = stream.answered(run.stream, inbox.request, turned_away, _for_all(clock, window))
    moments = _for_all(clock, size)
    kept = book.keep(
        kept, notes, rows, plan.requests, refused, moments, plan.refused + book.REFUSED
    )
    return replace(
        run, notes=notes, kept=kept, first=run.first + taken,
        ended=run.ended + jnp.sum(turned_away) + jnp.sum(refused),
        stream=stream.answered(sent, plan.requests, refused, moments),
    )


def _for_all(moment: Time, size: int) -> Time:
    return jax.tree.map(lambda part: jnp.broadcast_to(part, (size,)), moment)


def _note_grants(run: Run, plan: Plan, rows: Rows, start: Time, executes) -> Run:
    """Seats, swaps, prefix hits and recomputation."""
    notes, size = run.notes, plan.admitted.shape[0]
    place = jnp.where(plan.running != NO_ROW, plan.running, size)
    again = plan.grants - plan.fresh
    recomputed = when(
        jnp.any(again > 0), lambda values: values.at[place].add(again, mode="drop"),
        notes.recomputed,
    )
    granted = plan.admitted | (rows.in_flight > 0)
    newly = granted & (notes.admitted.seconds == book.NEVER) & executes
    cached = notes.cached
    if plan.cached is not None:
        cached = jnp.where(plan.admitted & ~plan.resumed, plan.cached, cached)
    return replace(run, notes=replace(
        notes, admitted=time.select(newly, start, notes.admitted), cached=cached,
        recomputed=recomputed, swaps=notes.swaps + plan.swapped_out,
    ))


def _note_tokens(
    policy: Policy, run: Run, plan: Plan, emitted: Emitted, end: Time, shape: Shape
) -> tuple[Run, Int[Array, ""]]:
    """Tokens and endings of one iteration; returns how many ended too."""
    size = emitted.emitted.shape[0]
    later = emitted.emitted & (run.notes.output > 0)
    notes, gap = book.token_out(run.notes, emitted.emitted, end)
    gaps = run.gaps
    if shape.gaps and policy.traits.deliver_at == "token":
        gaps = count_alike(gaps, gap, later)
    done = emitted.finished != FinishReason.NONE
    moments = _for_all(end, size)
    kept = book.keep(
        run.kept, notes, run.state.rows, emitted.requests, done, moments, emitted.finished
    )
    run = replace(
        run, notes=notes, kept=kept, gaps=gaps, ended=run.ended + jnp.sum(done)
    )
    return _deliver(policy, run, emitted.requests, done, moments, end), jnp.sum(done)


def _deliver(
    policy: Policy, run: Run, requests, done: Bool[Array, "P"], moments: Time, end: Time
) -> Run:
    """Whoever ended is told so, at once or at the end of the batch."""
    if policy.traits.deliver_at == "batch_end":
        return _hold_back(run, requests, done, end)
    return replace(run, stream=stream.answered(run.stream, requests, done, moments))


def _hold_back(run: Run, requests, done: Bool[Array, "P"], end: Time) -> Run:
    """Answers wait for the end of their batch."""
    # Each of a batch has its seat to itself until the batch ends: there is always room.
    held = jnp.sum(run.held_back != NO_REQUEST)
    place = jnp.where(done, held + jnp.cumsum(done) - 1, run.held_back.shape[0])
    members = run.held_back.at[place].set(requests, mode="drop")

    over = run.state.num_running == 0
    sent = stream.answered(
        run.stream, members, over & (members != NO_REQUEST), _for_all(end, members.shape[0])
    )

    def deliver(carry):
        kept, members = carry
        return book.deliver_late(kept, members, end), jnp.full_like(members, NO_REQUEST)

    kept, members = when(over, deliver, (run.kept, members))
    return replace(run, kept=kept, held_back=members, stream=sent)


def _write_page(run: Run, plan: Plan, emitted: Emitted, begun: Time, end: Time) -> Run:
    if run.pages is None:
        return run
    pages = jax.tree.map(
        lambda stack, leaf: lax.dynamic_update_index_in_dim(stack, jnp.asarray(leaf), run.rows, 0),
        run.pages, (plan, emitted, begun, end),
    )
    return replace(run, pages=pages)


def _leap(policy: Policy, pace: Pace, run: Run, leaps, shape: Shape) -> Run:
    """As many iterations at once as are alike, and again, until none is."""
    def goes(carry):
        run, more = carry
        backlog, upcoming = outside(run)
        free = jnp.sum(run.state.rows.status == Status.FREE)
        # A row that is free takes in what waits behind the rows.
        quiet = (backlog == 0) | (free == 0)
        if shape.closed:
            # A client that is free sends its next request.
            inside = shape.limits.rows - free + backlog
            quiet &= (inside >= run.stream.concurrency) | (run.arrived == run.stream.count)
        goes = more & leap.decodes_only(run.state) & quiet
        goes &= leap.ask(policy, run.state, backlog, shape.limits).turns > 0
        if shape.rows:
            goes &= run.rows <= shape.rows - shape.lanes
        return goes & time.before(run.state.clock, upcoming)

    def take(carry):
        run, _ = carry
        backlog, upcoming = outside(run)
        ahead, says = leap.look_ahead(
            policy, run.state, pace, run.compiled, run.iteration, upcoming, backlog, shape.limits,
            shape.lanes, shaped=shape.shaped,
            closed=shape.closed or run.stream.talks is not None,
        )
        run = when(
            ahead.turns > 0, lambda run: _land(policy, pace, run, ahead, says, backlog, shape), run
        )
        # A leap that an event has cut short is followed by that event.
        return run, ahead.turns == shape.lanes

    return lax.while_loop(goes, take, (run, leaps))[0]


def _land(
    policy: Policy, pace: Pace, run: Run, ahead: leap.Lanes, says, backlog, shape: Shape
) -> Run:
    before, notes = run.state, run.notes
    state = leap.land(policy, before, ahead, pace, shape.limits)
    gaps = run.gaps
    if shape.gaps and policy.traits.deliver_at == "token":
        gaps = leap.count_gaps(gaps, notes, ahead, before.clock)
    run = replace(
        run, state=state, gaps=gaps, notes=leap.note(notes, ahead, before.clock),
        iteration=run.iteration + ahead.turns,
    )

    def end(run: Run) -> Run:
        own, gone, moments = leap.ended(notes, run.notes, ahead)
        requests = run.state.rows.request
        reasons = jnp.full(gone.shape, int(FinishReason.LENGTH), jnp.int32)
        kept = book.keep(run.kept, own, run.state.rows, requests, gone, moments, reasons)
        run = replace(
            run, state=leap.leave(run.state, ahead), kept=kept, ended=run.ended + jnp.sum(gone)
        )
        return _deliver(policy, run, requests, gone, moments, run.state.clock)

    if not policy.traits.lag:
        run = when(ahead.running[0] > ahead.running[ahead.last] - ahead.ends[ahead.last], end, run)
    if not shape.rows:
        return run
    waiting = jnp.sum(is_waiting(before.rows.status))
    return replace(run, rows=run.rows + ahead.turns, log=log.write_leap(
        run.log, run.rows, ahead, time.add(ahead.start, pace.host), before.system.num_blocks,
        waiting, backlog, says.limited_by,
    ))
