"""The transformers policy with block sharing: one walk, request by request, on the pool itself.

Blocks are registered when a batch's results are taken in, outputs included, and one block is kept
of each content. What nobody holds is findable but not free: all of it is forgotten when memory runs
short. A waiting request that finds a prefix gets a seat at once, even if it gets no tokens.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import merging, runlist, sharing
from cbjax.core.blocks import Blocks
from cbjax.core.control import when
from cbjax.core.decision import Decision, Requeue, nothing
from cbjax.core.limits import blocks_for
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW, Status
from cbjax.core.sharing import Shared
from cbjax.core.view import View
from cbjax.policies._transformers import Left, serve
from cbjax.policies._transformers_state import (
    Filled,
    Progress,
    candidates,
    left_at_start,
    per_row,
    queue_keys,
    why_waiting,
)

_LAST = jnp.iinfo(jnp.int32).max


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Made:
    """The decision as it grows; from one attempt to the next only seats and blocks are kept."""

    shared: Shared
    seated: Int[Array, "S"]  # in the order in which they got their seat
    seats: Int[Array, ""]  # seats taken
    admit: Bool[Array, "P"]
    went: Int[Array, "P"]  # 0, 1, ... in the order in which they gave their blocks up; -1
    gone: Int[Array, ""]  # how many these are
    in_pool: Bool[Array, "P"]  # of these, rows whose KV the host pool takes
    room: Int[Array, ""]  # free blocks of the host pool
    frozen: Bool[Array, ""]
    attempts: Int[Array, ""]
    again: Bool[Array, ""]  # nothing was scheduled, and there is more room now
    # Of the last attempt:
    service: Int[Array, "S"]  # rows in order of service, those that entered behind
    grant: Int[Array, "P"]
    lacks: Int[Array, "P"]  # blocks that rows with a seat starve for
    failed: Bool[Array, ""]  # somebody found no blocks, with a seat or without
    left: Left
    stop: Int[Array, ""]  # LimitedBy that ended the walk; QUEUE_EMPTY = it reached the end
    closed: Bool[Array, ""]  # nobody was admitted


def decide(knobs: dict, progress: Progress, view: View) -> tuple[Decision, Progress]:
    """One iteration; see `cbjax.policies.transformers`."""
    running = view.rows.status == Status.RUNNING
    frozen = progress.frozen & (view.finished == 0)
    progress = replace(
        progress, decoding=progress.decoding & running, frozen=frozen,
        seated=runlist.remove(progress.seated, ~running),
    )
    none, never = jnp.zeros_like(view.rows.held), jnp.bool_(False)
    start = _Made(
        shared=sharing.untouched(view.blocks, view.rows.held), seated=progress.seated,
        seats=view.num_running, admit=none > 0, went=none - 1, gone=jnp.int32(0),
        in_pool=none > 0, room=view.swap_blocks, frozen=frozen, attempts=jnp.int32(0),
        again=jnp.bool_(True), service=progress.seated, grant=none,
        lacks=none, failed=never, left=left_at_start(knobs, progress, view, jnp.int32(0)),
        stop=jnp.int32(LimitedBy.QUEUE_EMPTY), closed=never,
    )
    made = lax.while_loop(
        lambda made: made.again, partial(_attempt, knobs, view, progress), start
    )
    return _decision(view, progress, made)


def settle(progress: Progress, view: View) -> Blocks:
    """Register what the batch before filled, unless its request has changed its kind since.

    Where the schedule runs ahead, a chunk followed by the end of its prompt is such a change: its
    blocks are then not counted, and the row stays that many behind with what it registers.
    """
    filled, running = progress.filled, view.rows.status == Status.RUNNING
    counts = running & (filled.samples[0] == progress.decoding)
    count = view.in_run_order(jnp.where(counts, filled.blocks[0], 0))

    def register(carry):
        shared, count = carry
        seat = jnp.argmax(count > 0)
        shared = merging.merge(
            shared, view.token_ids, view.running[seat], count[seat], view.system.block_size
        )
        return shared, count.at[seat].set(0)

    shared, _ = lax.while_loop(
        lambda carry: jnp.any(carry[1] > 0), register,
        (sharing.untouched(view.blocks, view.rows.held), count),
    )
    return shared.blocks


def _attempt(knobs, view: View, progress: Progress, made: _Made) -> _Made:
    """Walk over all once; those that starve make room, for another attempt or beside a batch."""
    count = view.rows.held.shape[0]
    scarce = made.shared.blocks.free - merging.findable(made.shared.blocks) < progress.scarce
    shared = when(scarce, merging.purge, made.shared)
    free = shared.blocks.free - merging.findable(shared.blocks)
    rows = candidates(
        knobs, view, made.seated, progress.decoding, view.rows.computed + shared.cached,
        shared.held,
    )
    served = serve(rows, left_at_start(knobs, progress, view, free), view.system.block_size)

    def grow(carry):
        shared, need = carry
        seat = jnp.argmax(need > 0)
        return sharing.grow(shared, rows.rows[seat], need[seat]), need.at[seat].set(0)

    shared, _ = lax.while_loop(
        lambda carry: jnp.any(carry[1] > 0), grow,
        (shared, jnp.where(served.grant > 0, served.need, 0)),
    )
    lacks = jnp.where(served.starved, served.need, 0)
    made = replace(
        made, shared=shared, attempts=made.attempts + 1, again=jnp.bool_(False), service=rows.rows,
        grant=per_row(rows.rows, served.grant, count), lacks=per_row(rows.rows, lacks, count),
        failed=jnp.any(served.starved), left=served.left, stop=served.stop, closed=made.frozen,
    )
    made = _enter(view, made)
    nothing_scheduled = ~made.left.any & made.failed
    starving = jnp.any(made.lacks > 0)
    return when(nothing_scheduled | (made.left.any & starving), _make_room, made)


def _enter(view: View, made: _Made) -> _Made:
    """The walk over the queue, first fit; whoever finds a prefix takes a seat in any case."""
    seats = view.running.shape[0]
    # Where the running rows ended the walk, the queue is not reached.
    reached = ~made.frozen & (made.stop == LimitedBy.QUEUE_EMPTY)
    waits = view.waiting & ~made.admit & (made.went < 0)
    keys = jnp.where(waits & reached, queue_keys(view, waits), _LAST)

    def next_in_line(made: _Made, keys):
        row = jnp.argmin(keys)
        is_next = (made.stop == LimitedBy.QUEUE_EMPTY) & (keys[row] != _LAST)
        full = is_next & (made.seats >= seats)
        made = replace(made, stop=jnp.where(full, int(LimitedBy.SEATS), made.stop))
        return made, keys, row.astype(jnp.int32), is_next & ~full

    def visit(carry):
        made, keys, row, _ = carry
        return next_in_line(_visit(view, made, row), keys.at[row].set(_LAST))

    return lax.while_loop(lambda carry: carry[3], visit, next_in_line(made, keys))[0]


def _visit(view: View, made: _Made, row: Int[Array, ""]) -> _Made:
    """One request of the queue."""
    size, seats, left = view.system.block_size, view.running.shape[0], made.left
    known = view.rows.known[row]
    found, hits, _ = sharing.hits(made.shared, view.token_ids, row, known, size)
    # What lies in the host pool comes back whole.
    hits = jnp.where(view.rows.status[row] == Status.SWAPPED, 0, hits)
    computed = view.rows.computed[row] + hits * size
    tokens = jnp.minimum(known - computed, left.tokens)
    need = blocks_for(computed + tokens, size) - hits
    may = left.reads_allow(tokens, computed)
    fits = may & (need <= left.free)
    fails = may & (need > left.free)
    enters = fits | (hits > 0)
    # Both loops run over the blocks: without any nothing changes.
    shared = sharing.attach(made.shared, row, found, hits, size)
    shared = sharing.grow(shared, row, jnp.where(fits, need, 0))
    place = jnp.where(enters, made.seats, seats)
    taken = made.seats + enters
    full = fits & (taken >= seats)
    left = jax.tree.map(
        lambda new, old: jnp.where(fits, new, old), left.without(tokens, computed, need), left
    )
    return replace(
        made, shared=shared, seats=taken, left=left, failed=made.failed | fails,
        seated=made.seated.at[place].set(row, mode="drop"),
        service=made.service.at[place].set(row, mode="drop"),
        admit=made.admit.at[row].set(enters), grant=made.grant.at[row].set(tokens * fits),
        lacks=made.lacks.at[row].set(need * (fails & enters)),
        stop=jnp.where(full, int(LimitedBy.SEATS), left.stop()),
    )


def _make_room(made: _Made) -> _Made:
    """Forget what nobody holds; then the last that starve go until the others would fit.

    One request with a seat always stays, so that somebody gets on.
    """
    before = made.gone
    evicts = merging.findable(made.shared.blocks) > 0
    made = replace(made, shared=merging.purge(made.shared))

    def starve(made: _Made) -> Bool[Array, ""]:
        return (jnp.sum(made.lacks) > made.shared.blocks.free) & (made.seats > 1)

    def go(made: _Made) -> _Made:
        starved = (made.service != NO_ROW) & (made.lacks[made.service] > 0)
        row = made.service[jnp.max(jnp.where(starved, jnp.arange(starved.shape[0]), 0))]
        mask = jnp.arange(made.lacks.shape[0]) == row
        held = made.shared.held[row]
        moves = (held > 0) & (held <= made.room)
        return replace(
            made, shared=merging.discard(made.shared, row), lacks=made.lacks.at[row].set(0),
            seated=runlist.remove(made.seated, mask), service=runlist.remove(made.service, mask),
            seats=made.seats - 1, admit=made.admit & ~mask, gone=made.gone + 1,
            went=made.went.at[row].set(made.gone), in_pool=made.in_pool.at[row].set(moves),
            room=made.room - jnp.where(moves, held, 0), frozen=jnp.bool_(True),
        )

    made = lax.while_loop(starve, go, made)
    return replace(made, again=~made.left.any & (evicts | (made.gone > before)))


def _decision(view: View, progress: Progress, made: _Made):
    rows, size = view.rows, view.system.block_size
    preempt = made.went >= 0
    swap_in = made.admit & (rows.status == Status.SWAPPED)
    before = rows.computed + made.shared.cached
    reached = before + made.grant
    got = made.grant > 0
    samples = got & (reached == rows.known)
    waits = view.waiting & ~made.admit & ~preempt
    decision = replace(
        nothing(view), admit=made.admit, grant=made.grant, preempt=preempt,
        kv_tokens=jnp.where(got, reached, 0),
        # They line up, and are named, the other way around: the one that went first is last.
        preempt_order=jnp.where(preempt, made.gone - 1 - made.went, 0),
        requeue=jnp.where(made.in_pool, int(Requeue.SWAP_OUT_END), int(Requeue.END)),
        swap_in=swap_in, run_order=made.service, shared=made.shared,
        limited_by=why_waiting(
            view, waits, queue_keys(view, view.waiting), room_made=jnp.any(preempt),
            closed=made.closed, stop=made.stop, left=made.left,
        ),
    )
    # What comes back from the host pool has to be registered from its start.
    full = reached // size - jnp.where(swap_in, 0, before) // size

    stays = (rows.status == Status.RUNNING) & ~preempt

    def behind(batches, last):
        return jnp.concatenate([batches[1:] * stays, last[None]])

    return decision, replace(
        progress, seated=made.seated, frozen=made.frozen, attempts=made.attempts,
        decoding=(progress.decoding & ~preempt) | samples, fast=made.left.any & made.left.fast,
        filled=Filled(
            blocks=behind(progress.filled.blocks, jnp.where(got, full, 0)),
            samples=behind(progress.filled.samples, samples),
            free=view.free_blocks - merging.findable(view.blocks),
            findable=merging.findable(view.blocks),
        ),
    )
