"""Leaping: many iterations in one turn while all that runs decodes.

The iterations ahead are laid out as K lanes: who is still alive in each, the blocks and positions
held, its duration by the same small program that times any iteration, exact prefix sums of those.
The leap takes the leading lanes that no event reaches: an arrival, a shortage of blocks, an end
that matters. What is left behind is what as many plain turns leave behind, bit for bit.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.control import when
from cbjax.core.limits import Limits, blocks_for
from cbjax.core.policy import Policy
from cbjax.core.reasons import IterationKind
from cbjax.core.receive import vacate
from cbjax.core.rows import Rows, Status
from cbjax.core.state import State, view
from cbjax.core.steady import Steady
from cbjax.core.time import NANOSECONDS, Time
from cbjax.simulate.book import Notes
from cbjax.simulate.histogram import BINS, bin_of
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
    gap_ns: Int[Array, "K"]  # between the ends of an iteration and of the one before
    left: Int[Array, "P"]  # tokens that each running row still gets, 0 elsewhere

    @property
    def last(self) -> Int[Array, ""]:
        """The last lane that is taken."""
        return self.turns - 1


def decodes_only(state: State) -> Bool[Array, ""]:
    """Whether all that runs has one token to compute, its answer's last, for the first time."""
    rows = state.rows
    decodes = (rows.computed == rows.known - 1) & (rows.known > rows.prompt)
    decodes &= rows.peak <= rows.computed
    calm = jnp.all(decodes | (rows.status != Status.RUNNING)) & (state.num_running > 0)
    return calm if state.ending is None else calm & ~jnp.any(state.ending)


def ask(policy: Policy, state: State, backlog: Int[Array, ""], limits: Limits) -> Steady:
    """What the policy says of the iterations ahead; it must have `steady`."""
    assert policy.steady is not None
    return policy.steady(policy.knobs, state.policy, view(state, backlog, limits))


def look_ahead(
    policy: Policy, state: State, pace: Pace, compiled: Bool[Array, "G"], iteration, next_arrival,
    backlog: Int[Array, ""], limits: Limits, lanes: int, *, shaped: bool, closed: bool,
) -> tuple[Lanes, Steady]:
    """The iterations ahead if `decodes_only`, and how many of them nothing disturbs.

    Args:
        policy: says something of them.
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
    says = ask(policy, state, backlog, limits)
    rows, size = state.rows, state.system.block_size
    left = jnp.minimum(
        rows.max_tokens - (rows.known - rows.prompt), state.system.max_length - rows.known
    )
    left = jnp.where(rows.status == Status.RUNNING, jnp.maximum(left, 1), 0)
    lane = jnp.arange(lanes, dtype=jnp.int32)
    alive = left[:, None] > lane
    running = jnp.sum(alive, axis=0)
    context = jnp.sum(jnp.where(alive, (rows.known)[:, None], 0), axis=0) + lane * running
    used = jnp.sum(jnp.where(alive, _blocks(rows, size, lane), 0), axis=0)
    behind = jnp.concatenate([running[1:], jnp.sum(left > lanes)[None]])
    tokens = jnp.maximum(running, says.width)
    work = Work(
        iteration + lane, tokens, jnp.zeros_like(lane), running, context,
        context.astype(jnp.float32), jnp.zeros_like(lane),
    )
    spent, rung = durations(pace, work, compiled, shaped)
    short = (spent.seconds < 2) & (pace.host.seconds == 0)
    short &= pace.host.nanoseconds <= _MOST_HOST_NS
    gap_ns = spent.seconds * NANOSECONDS + spent.nanoseconds + pace.host.nanoseconds
    gap_ns = jnp.where(short, gap_ns, 0)
    end = _moments(state.clock, gap_ns)
    start = jax.tree.map(
        lambda first, later: jnp.concatenate([first[None], later[:-1]]), state.clock, end
    )
    goes = (running > 0) & short & (lane < says.turns) & time.before(start, next_arrival)
    goes &= time.before(start, says.until)
    goes &= state.system.num_blocks - used >= says.spare
    if shaped:
        goes &= (pace.compile_s == 0) | compiled[rung]
    if policy.traits.lag:
        # Who has ended is still scheduled once.
        goes &= behind == running[0]
    else:
        matters = ~says.through | closed | (backlog > 0)
        goes &= (running == running[0]) | ~matters
    turns = jnp.min(jnp.where(goes, lanes, lane))
    return Lanes(
        turns, running, running - behind, used, context, work, start, spent, end, gap_ns, left
    ), says


def _blocks(rows: Rows, size: Int[Array, ""], lane: Int[Array, "K"]) -> Int[Array, "P K"]:
    """Blocks that each row owns in each lane: it gets a new one when its last is full."""
    beyond = lane - (rows.held * size - rows.known)[:, None]
    # `ceil(beyond / size)` without the machine's slow division; exact below 2**20: the half keeps
    # the quotient farther from whole numbers than its rounding reaches.
    inverse = 1.0 / size.astype(jnp.float32)
    more = jnp.ceil((beyond.astype(jnp.float32) - 0.5) * inverse).astype(jnp.int32)
    return rows.held[:, None] + jnp.maximum(more, 0)


def _up_to_each(values: Int[Array, "K"], combine, start: int) -> Int[Array, "K"]:
    """Sums or maxima of the lanes up to each one: of so few, a table is quicker than a scan."""
    lane = jnp.arange(values.shape[0])
    return combine(jnp.where(lane[:, None] <= lane, values[:, None], start), axis=0)


def _moments(clock: Time, gap_ns: Int[Array, "K"]) -> Time:
    """The clock after each of K gaps one after another, exact in 32 bits."""
    rest = _up_to_each(gap_ns % _MS, jnp.sum, 0) + clock.nanoseconds % _MS
    whole = _up_to_each(gap_ns // _MS, jnp.sum, 0) + clock.nanoseconds // _MS + rest // _MS
    return Time(clock.seconds + whole // 1000, whole % 1000 * _MS + rest % _MS)


def land(policy: Policy, state: State, ahead: Lanes, pace: Pace, limits: Limits) -> State:
    """The state after `ahead.turns` iterations, before those that ended leave it."""
    rows, turns, last = state.rows, ahead.turns, ahead.last
    runs = ahead.left > 0
    gets = jnp.minimum(ahead.left, turns)
    computed = rows.computed + gets
    held = jnp.maximum(rows.held, blocks_for(computed, state.system.block_size))
    held = jnp.where(runs, held, rows.held)
    carried = state.policy
    if policy.advance is not None:
        carried = policy.advance(
            policy.knobs, carried, view(state, jnp.int32(0), limits), turns, ahead.running[last]
        )
    return replace(
        state,
        rows=replace(
            rows, known=rows.known + gets, computed=computed,
            peak=jnp.maximum(rows.peak, jnp.where(runs, computed, 0)), held=held,
        ),
        blocks=replace(state.blocks, free=state.system.num_blocks - jnp.sum(held)),
        policy=carried,
        newest=None if state.newest is None else runs,
        # What has ended since the last `schedule`, and not before.
        finished=jnp.int32(0),
        last_kind=jnp.int32(IterationKind.DECODE),
        last_duration=time.add(_at(ahead.spent, last), pace.host),
        clock=_at(ahead.end, last),
    )


def leave(state: State, ahead: Lanes) -> State:
    """The same without the requests that ended within the leap."""
    gone = (ahead.left > 0) & (ahead.left <= ahead.turns)
    state = vacate(state, gone)
    return replace(state, finished=ahead.ends[ahead.last])


def note(notes: Notes, ahead: Lanes, clock: Time) -> Notes:
    """The tokens of the leap, of those that go on; `clock` is when it began."""
    runs = ahead.left > 0
    first_gap = time.subtract(_at(ahead.end, 0), notes.last)
    longest = _gap(_longest(ahead)[ahead.last])
    most = time.select(time.before(first_gap, longest), longest, first_gap)
    longer = runs & time.before(notes.max_gap, most)
    return replace(
        notes, last=time.select(runs, _at(ahead.end, ahead.last), notes.last),
        max_gap=time.select(longer, most, notes.max_gap),
        output=notes.output + jnp.minimum(ahead.left, ahead.turns),
    )


def ended(
    before: Notes, after: Notes, ahead: Lanes
) -> tuple[Notes, Bool[Array, "P"], Time]:
    """Of those that ended within the leap: their notes, which they are, and when they did.

    Args:
        before, after: the notes before the leap, and what `note` made of them.
        ahead: the leap.
    """
    gone = (ahead.left > 0) & (ahead.left <= ahead.turns)
    place = jnp.clip(ahead.left - 1, 0, ahead.running.shape[0] - 1)
    first_gap = time.subtract(_at(ahead.end, 0), before.last)
    longest = _gap(_longest(ahead)[place])
    most = time.select(time.before(first_gap, longest), longest, first_gap)
    most = time.select(time.before(before.max_gap, most), most, before.max_gap)
    return replace(after, max_gap=most), gone, _at(ahead.end, place)


def _longest(ahead: Lanes) -> Int[Array, "K"]:
    """Longest gap behind the first token of the leap, up to each lane; -1 in the first."""
    lane = jnp.arange(ahead.gap_ns.shape[0])
    return _up_to_each(jnp.where(lane > 0, ahead.gap_ns, -1), jnp.max, -1)


def _gap(nanoseconds: Int[Array, "*n"]) -> Time:
    """A gap within a leap; -1 comes before all others."""
    return Time(
        jnp.where(nanoseconds < 0, -1, nanoseconds // NANOSECONDS), nanoseconds % NANOSECONDS
    )


def count_gaps(
    gaps: Int[Array, "B"], notes: Notes, ahead: Lanes, clock: Time
) -> Int[Array, "B"]:
    """The gaps of the leap in the histogram; `notes` and `clock` are those before it."""
    lane = jnp.arange(ahead.gap_ns.shape[0])
    runs = ahead.left > 0
    late = (notes.last.seconds != clock.seconds) | (notes.last.nanoseconds != clock.nanoseconds)
    apart = jnp.any(runs & late)
    gaps = when(
        apart, lambda gaps: gaps.at[
            jnp.where(runs, bin_of(time.subtract(_at(ahead.end, 0), notes.last)), BINS)
        ].add(1, mode="drop"), gaps,
    )
    # Usually everybody got the last token at the same time, which is when the leap began.
    counts = (lane < ahead.turns) & ((lane > 0) | ~apart)
    place = jnp.where(counts, bin_of(_gap(ahead.gap_ns)), BINS)
    return gaps.at[place].add(ahead.running, mode="drop")


def _at(moments: Time, lane) -> Time:
    return Time(moments.seconds[lane], moments.nanoseconds[lane])
