"""Leaping: many iterations in one turn while all that runs decodes.

The iterations ahead are laid out as K lanes: who is still alive in each, the blocks and positions
held, its duration by the same small program that times any iteration, exact prefix sums of those.
The leap takes the leading lanes that no event reaches: an arrival, a shortage of blocks, an end
that matters. What is left behind is what as many plain turns leave behind, bit for bit.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import runlist, time
from cbjax.core.limits import Limits, blocks_for
from cbjax.core.policy import Policy
from cbjax.core.reasons import FinishReason, IterationKind
from cbjax.core.rows import NO_REQUEST, Rows, Status
from cbjax.core.state import State, view
from cbjax.core.steady import Steady
from cbjax.core.time import NANOSECONDS, Time
from cbjax.simulate.book import Notes
from cbjax.simulate.pace import Pace, durations
from cbjax.simulate.work import Work

_MOST_HOST_NS = 100_000_000  # beside an iteration below 2 s: nanoseconds of both fit int32
_MS = 1_000_000


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lanes:
    """K iterations ahead; `turns` of them are taken."""

    turns: Int[Array, ""]
    running: Int[Array, "K"]
    ends: Int[Array, "K"]  # requests whose last token it yields
    used: Int[Array, "K"]  # blocks
    context: Int[Array, "K"]  # positions held by those that run
    work: Work
    start: Time  # [K]
    spent: Time  # [K] duration, host time apart
    end: Time  # [K]
    left: Int[Array, "P"]  # tokens that each running row still gets


def decodes_only(state: State) -> Bool[Array, ""]:
    """Whether all that runs has one token to compute, its answer's last, for the first time."""
    rows = state.rows
    decodes = (rows.computed == rows.known - 1) & (rows.known > rows.prompt)
    decodes &= rows.peak <= rows.computed
    calm = jnp.all(decodes | (rows.status != Status.RUNNING)) & (state.num_running > 0)
    return calm if state.ending is None else calm & ~jnp.any(state.ending)


def look_ahead(
    policy: Policy, state: State, pace: Pace, compiled: Bool[Array, "G"], iteration, next_arrival,
    backlog: Int[Array, ""], limits: Limits, lanes: int, *, shaped: bool, closed: bool,
) -> tuple[Lanes, Steady]:
    """The iterations ahead if `decodes_only`, and how many of them nothing disturbs.

    Args:
        policy: must have `steady`.
        state: between two iterations.
        pace, compiled: as in `durations`.
        iteration: number of the next one.
        next_arrival: when the next request arrives.
        backlog: requests that wait outside the rows; an end lets one of them in.
        limits: the capacities.
        lanes: static; K.
        shaped: static; whether rungs matter.
        closed: static; an end lets the next request in.
    """
    assert policy.steady is not None
    says: Steady = policy.steady(policy.knobs, state.policy, view(state, backlog, limits))
    rows, size = state.rows, state.system.block_size
    runs = rows.status == Status.RUNNING
    left = jnp.minimum(
        rows.max_tokens - (rows.known - rows.prompt), state.system.max_length - rows.known
    )
    left = jnp.where(runs, jnp.maximum(left, 1), 0)
    lane = jnp.arange(lanes, dtype=jnp.int32)
    alive = left[None, :] > lane[:, None]
    running = jnp.sum(alive, axis=1)
    context = jnp.sum(jnp.where(alive, rows.known, 0), axis=1) + lane * running
    # Rows own blocks for all that is computed; a new one is needed when the last is full.
    slack = rows.held * size - rows.known
    beyond = lane[:, None] - slack[None, :]
    used = jnp.sum(
        jnp.where(alive, rows.held + jnp.maximum(_quotient_up(beyond, size), 0), 0), axis=1
    )
    behind = jnp.concatenate([running[1:], jnp.sum(left > lanes)[None]])
    tokens = jnp.maximum(running, says.width)
    work = Work(
        iteration + lane, tokens, jnp.zeros_like(lane), running, context,
        context.astype(jnp.float32),
    )
    spent, rung = durations(pace, work, compiled, shaped)
    turn_ns = spent.seconds * NANOSECONDS + spent.nanoseconds + pace.host.nanoseconds
    short = (spent.seconds < 2) & (pace.host.seconds == 0)
    short &= pace.host.nanoseconds <= _MOST_HOST_NS
    end = _moments(state.clock, jnp.where(short, turn_ns, 0))
    start = jax.tree.map(
        lambda first, later: jnp.concatenate([first[None], later[:-1]]), state.clock, end
    )
    free = state.system.num_blocks - used
    goes = (running > 0) & short & (lane < says.turns) & (free >= says.spare)
    goes &= time.before(start, next_arrival)
    if shaped:
        goes &= (pace.compile_s == 0) | compiled[rung]
    if policy.traits.lag:
        # Who has ended is still scheduled once.
        goes &= behind == running[0]
    else:
        matters = ~says.through | closed | (backlog > 0)
        goes &= (running == running[0]) | ~matters
    turns = jnp.sum(jnp.cumprod(goes.astype(jnp.int32)))
    return Lanes(
        turns, running, running - behind, used, context, work, start, spent, end, left
    ), says


def _quotient_up(value: Int[Array, "K P"], size: Int[Array, ""]) -> Int[Array, "K P"]:
    """`ceil(value / size)` for values below 2**20, without the machine's slow division.

    The half keeps the quotient farther from whole numbers than its rounding reaches.
    """
    inverse = 1.0 / size.astype(jnp.float32)
    return jnp.ceil((value.astype(jnp.float32) - 0.5) * inverse).astype(jnp.int32)


def _moments(clock: Time, gaps_ns: Int[Array, "K"]) -> Time:
    """The clock after each of K gaps one after another, exact in 32 bits."""
    whole, rest = gaps_ns // _MS, gaps_ns % _MS
    rest = jnp.cumsum(rest) + clock.nanoseconds % _MS
    whole = jnp.cumsum(whole) + clock.nanoseconds // _MS + rest // _MS
    return Time(clock.seconds + whole // 1000, whole % 1000 * _MS + rest % _MS)


def land(policy: Policy, state: State, ahead: Lanes, pace: Pace, limits: Limits) -> State:
    """The state after `ahead.turns` iterations."""
    rows, turns = state.rows, ahead.turns
    last = turns - 1
    runs = rows.status == Status.RUNNING
    gets = jnp.minimum(ahead.left, turns)
    ends = runs & (ahead.left <= turns)
    known = rows.known + gets
    computed = rows.computed + gets
    held = jnp.maximum(rows.held, blocks_for(computed, state.system.block_size))
    held = jnp.where(runs, held, rows.held)
    carried = state.policy
    if policy.advance is not None:
        carried = policy.advance(
            policy.knobs, carried, view(state, jnp.int32(0), limits), turns, ahead.running[last]
        )
    # The row itself is given back, as `vacate` does it.
    gone = ends & (not policy.traits.lag)
    staying = jnp.sum(jnp.where(gone, 0, held) - jnp.where(runs, 0, held))
    spent = jax.tree.map(lambda part: part[last], ahead.spent)
    return replace(
        state,
        rows=replace(
            rows, known=known, computed=computed,
            peak=jnp.where(runs, jnp.maximum(rows.peak, computed), rows.peak),
            held=jnp.where(gone, 0, held),
            request=jnp.where(gone, NO_REQUEST, rows.request),
            status=jnp.where(gone, int(Status.FREE), rows.status),
        ),
        blocks=replace(state.blocks, free=state.system.num_blocks - staying),
        running=lax.cond(
            jnp.any(gone), lambda: runlist.remove(state.running, gone), lambda: state.running
        ),
        num_running=state.num_running - jnp.sum(gone),
        policy=carried,
        newest=None if state.newest is None else runs,
        # What `schedule` has not reset since.
        finished=jnp.sum(gone & (ahead.left == turns)),
        last_kind=jnp.int32(IterationKind.DECODE),
        last_duration=time.add(spent, pace.host),
        clock=jax.tree.map(lambda part: part[last], ahead.end),
    )


def note(notes: Notes, ahead: Lanes, rows: Rows) -> tuple[Notes, Time, Time]:
    """The tokens of the leap in the book.

    Returns:
        The book; the gap before the first token of each row `[P]`; and the gap before each later
        one, the same for all `[K]` (the first lane's is not used).
    """
    runs = rows.status == Status.RUNNING
    gets = jnp.minimum(ahead.left, ahead.turns)
    lanes = ahead.running.shape[0]
    place = jnp.clip(gets - 1, 0, lanes - 1)
    end = jax.tree.map(lambda part: part[place], ahead.end)
    first = time.subtract(jax.tree.map(lambda part: part[:1], ahead.end), notes.last)
    between = time.subtract(
        jax.tree.map(lambda part: part[1:], ahead.end),
        jax.tree.map(lambda part: part[:-1], ahead.end),
    )
    # Gaps within a leap are below its longest iteration.
    gaps_ns = jnp.concatenate([
        jnp.full(1, -1, jnp.int32), between.seconds * NANOSECONDS + between.nanoseconds
    ])
    longest_ns = lax.cummax(gaps_ns)[place]
    longest = Time(
        jnp.where(longest_ns < 0, -1, longest_ns // NANOSECONDS), longest_ns % NANOSECONDS
    )
    most = time.select(time.before(notes.max_gap, first), first, notes.max_gap)
    most = time.select(time.before(most, longest), longest, most)
    gaps = Time(gaps_ns // NANOSECONDS, gaps_ns % NANOSECONDS)
    return replace(
        notes, last=time.select(runs, end, notes.last),
        max_gap=time.select(runs, most, notes.max_gap), output=notes.output + gets,
    ), first, gaps


def ended(ahead: Lanes, rows: Rows) -> tuple[Bool[Array, "P"], Time, Int[Array, "P"]]:
    """Which rows ended within the leap, when, and why."""
    runs = (rows.status == Status.RUNNING) & (ahead.left <= ahead.turns)
    place = jnp.clip(ahead.left - 1, 0, ahead.running.shape[0] - 1)
    end = jax.tree.map(lambda part: part[place], ahead.end)
    return runs, end, jnp.full(runs.shape, int(FinishReason.LENGTH), jnp.int32)
