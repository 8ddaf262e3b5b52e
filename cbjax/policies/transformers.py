"""transformers' continuous batching: skip what does not fit, recompute at the end of the queue.

Running requests take blocks for the coming step only. One that gets none keeps its seat without
tokens while the others go on. The newest of these then give their blocks up: they wait behind all
others, their KV in the host pool if it fits there, and nobody is admitted until a request ends.
Rules as of transformers 5.24 without sliding windows and parallel sampling.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import runlist
from cbjax.core.decision import Requeue, nothing
from cbjax.core.limits import blocks_for
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import Status
from cbjax.core.view import View
from cbjax.policies import _transformers_sharing
from cbjax.policies._transformers import Candidates, Left, Served, serve, stored, victims
from cbjax.policies._transformers_state import (
    Progress,
    candidates,
    init,
    left_at_start,
    per_row,
    queue_keys,
    why_waiting,
)

_MARGIN = {"fifo": 0.15, "prefill_first": 0.0}


def transformers(
    max_batch_tokens: int = 8192,
    max_requests_per_batch: int = 1024,
    scheduler_type: str = "fifo",
    max_blocks_per_request: int = 32,
    safety_margin: float | None = None,
    use_async_batching: bool = False,
    read_budget: int = 0,
    allow_block_sharing: bool = False,
) -> Policy:
    """Continuous batching of transformers with its own knobs and names.

    The space for offloaded KV (`cpu_offload_space`) is the system's: `swap_blocks`.

    Args:
        max_batch_tokens: token budget of an iteration, decodes included. The original derives it
            from the memory, 8192 at most.
        max_requests_per_batch: most requests in an iteration. More may hold a seat: one that
            starves keeps it.
        scheduler_type: "fifo": decodes before prompts that are under way; "prefill_first": the
            other way around. New requests come last in both.
        max_blocks_per_request: a batch of single tokens of sequences within so many blocks is
            decoded without an index of what it reads, hence without a read budget; 0 = never.
        safety_margin: share of the blocks below which only decodes join what is scheduled already;
            None = 0.15 for "fifo", 0.0 for "prefill_first".
        use_async_batching: schedule one iteration ahead of the results. A request that gives its
            blocks up loses the token under way.
        read_budget: most KV entries that a batch reads; 0 = as many as the pool holds.
        allow_block_sharing: full blocks are found again by their tokens, those of outputs too. The
            original has it on by default; here it needs token ids, so it is a choice.

    Raises:
        ValueError: a knob is out of range.

    Source: transformers 5.24, `generation/continuous_batching/`; recorded decisions of that
    release. Where nothing can be scheduled and nobody can make room (a request that ended fills
    the pool while its last, useless step is asked for) the original raises; here the iteration
    passes without tokens.
    """
    require_positive(
        max_batch_tokens=max_batch_tokens, max_requests_per_batch=max_requests_per_batch
    )
    if scheduler_type not in _MARGIN:
        raise ValueError(f"scheduler_type = {scheduler_type!r}: choose one of {sorted(_MARGIN)}")
    for name, value, words in (
        ("max_blocks_per_request", max_blocks_per_request, "no fast path, or a number of blocks"),
        ("read_budget", read_budget, "the whole pool, or a number of tokens"),
    ):
        if value < 0:
            raise ValueError(f"{name} = {value}: give 0 for {words}")
    margin = _MARGIN[scheduler_type] if safety_margin is None else safety_margin
    if not 0.0 <= margin < 1.0:
        raise ValueError(
            f"safety_margin = {safety_margin}: give a share of the blocks, 0 <= share < 1"
        )
    knobs = dict(
        max_batch_tokens=max_batch_tokens, max_requests_per_batch=max_requests_per_batch,
        prefill_first=scheduler_type == "prefill_first",
        max_blocks_per_request=max_blocks_per_request, safety_margin=margin,
        read_budget=read_budget,
    )
    return Policy(
        knobs=knobs, name="transformers",
        init=_INIT[allow_block_sharing * (1 + use_async_batching)],
        decide=_transformers_sharing.decide if allow_block_sharing else _decide,
        settle=_transformers_sharing.settle if allow_block_sharing else None,
        seats="max_requests_per_batch", budget="max_batch_tokens",
        traits=Traits(
            lag=int(use_async_batching), drops_in_flight=use_async_batching,
            # What the last step fills, the original never registers.
            shares=allow_block_sharing, registers_ended="nothing",
        ),
    )


# By the batches that lie between two decisions; one object each, for they are compared as such.
_INIT = {batches: partial(init, batches=batches) for batches in range(3)}


def _decide(knobs: dict, progress: Progress, view: View):
    size = view.system.block_size
    frozen = progress.frozen & (view.finished == 0)
    running = view.rows.status == Status.RUNNING
    progress = replace(
        progress, decoding=progress.decoding & running,
        seated=runlist.remove(progress.seated, ~running),
    )
    rows = candidates(
        knobs, view, progress.seated, progress.decoding, view.rows.computed, view.rows.held
    )
    line = queue_keys(view, view.waiting)
    served = serve(rows, left_at_start(knobs, progress, view, view.free_blocks), size)
    entered = _admit(view, line, served, ~frozen)
    scheduled = served.left.any | entered.left.any
    once = _Made(rows, served, victim=jnp.zeros_like(rows.alive), again=jnp.bool_(False))

    def again() -> _Made:
        """Nothing could be scheduled: some make room and the others are served once more.

        What these lacked is free then, unless only one is left; and nobody is admitted.
        """
        lost = victims(rows, served)
        others = replace(rows, alive=rows.alive & ~lost)
        free = view.free_blocks + jnp.sum(jnp.where(lost, rows.held, 0))
        second = serve(others, left_at_start(knobs, progress, view, free), size)
        return _Made(others, second, victim=lost, again=jnp.any(lost))

    made = lax.cond(~scheduled & jnp.any(served.starved), again, lambda: once)
    # The batch is made; those that starve beside it make room for the next one.
    left = jax.tree.map(
        lambda first, second: jnp.where(made.again, second, first), entered.left, made.served.left
    )
    beside = victims(made.rows, replace(made.served, left=left)) & scheduled
    made = replace(made, victim=made.victim | beside)
    stop = made.served.stop
    limited_by = why_waiting(
        view, view.waiting & ~entered.admit, line, room_made=jnp.any(made.victim),
        closed=frozen | made.again,
        stop=jnp.where(stop != LimitedBy.QUEUE_EMPTY, stop, entered.stop), left=left,
    )
    return _decision(view, replace(progress, frozen=frozen), made, entered, left, limited_by)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Made:
    """What became of the running rows, in the order of service."""

    rows: Candidates
    served: Served
    victim: Bool[Array, "S"]
    again: Bool[Array, ""]  # they were served a second time


def _decision(
    view: View, progress: Progress, made: _Made, entered: "_Entered", left: Left, limited_by
):
    rows, table = made.rows, view.rows
    count = table.held.shape[0]

    def to_rows(values):
        return per_row(rows.rows, values, count)

    grant = to_rows(made.served.grant) + entered.grant
    reached = table.computed + grant
    preempt = to_rows(made.victim)
    in_pool = to_rows(stored(rows.held, made.victim, view.swap_blocks))
    seats = view.num_running - jnp.sum(made.victim)
    seated, _ = runlist.append_in_order(
        runlist.remove(progress.seated, preempt), seats, entered.admit, entered.order
    )
    decision = replace(
        nothing(view), admit=entered.admit, admit_order=entered.order, grant=grant,
        kv_tokens=jnp.where(grant > 0, reached, 0), preempt=preempt,
        # They line up, and are named, in the order of service: the one that went first is last.
        preempt_order=to_rows(jnp.cumsum(made.victim) - 1),
        requeue=jnp.where(in_pool, int(Requeue.SWAP_OUT_END), int(Requeue.END)),
        swap_in=entered.admit & (table.status == Status.SWAPPED),
        running=runlist.remove(rows.rows, preempt),
        limited_by=limited_by,
    )
    got = grant > 0
    return decision, replace(
        progress, seated=seated, frozen=progress.frozen | jnp.any(preempt),
        decoding=(progress.decoding & ~preempt) | (got & (reached == table.known)),
        attempts=1 + made.again, fast=left.any & left.fast,
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Entered:
    """The walk over the queue, behind the running rows."""

    left: Left
    grant: Int[Array, "P"]
    admit: Bool[Array, "P"]
    order: Int[Array, "P"]  # 0, 1, ... in order of admission
    count: Int[Array, ""]
    stop: Int[Array, ""]  # LimitedBy that ended the walk; QUEUE_EMPTY = it reached the end


def _admit(view: View, line, served: Served, open_: Bool[Array, ""]) -> _Entered:
    """Waiting rows in line, first fit: each turn admits the next one that fits what is left."""
    rows, last = view.rows, jnp.iinfo(jnp.int32).max
    seats = view.running.shape[0] - view.num_running
    # Where the running rows ended the walk, the queue is not reached.
    open_ = open_ & (served.stop == LimitedBy.QUEUE_EMPTY)
    line = jnp.where(view.waiting & open_, line, last)
    want = rows.known - rows.computed

    def next_in_line(entered: _Entered, behind):
        """The next one that fits, its key (`last`: nobody), its tokens and blocks."""
        left = entered.left
        tokens = jnp.minimum(want, left.tokens)
        blocks = blocks_for(rows.computed + tokens, view.system.block_size)
        fits = left.reads_allow(tokens, rows.computed) & (blocks <= left.free)
        fits &= (line > behind) & (entered.stop == LimitedBy.QUEUE_EMPTY)
        keys = jnp.where(fits, line, last)
        row = jnp.argmin(keys)
        return row, keys[row], tokens[row], blocks[row]

    def enter(carry):
        entered, (row, key, tokens, blocks) = carry
        left = entered.left.without(tokens, rows.computed[row], blocks)
        count = entered.count + 1
        entered = _Entered(
            left=left, grant=entered.grant.at[row].set(tokens),
            admit=entered.admit.at[row].set(True), order=entered.order.at[row].set(entered.count),
            count=count, stop=jnp.where(count >= seats, int(LimitedBy.SEATS), left.stop()),
        )
        return entered, next_in_line(entered, key)

    zeros = jnp.zeros_like(rows.held)
    full = jnp.where(seats <= 0, int(LimitedBy.SEATS), int(LimitedBy.QUEUE_EMPTY))
    nobody = _Entered(served.left, zeros, zeros > 0, zeros, jnp.int32(0), full.astype(jnp.int32))
    entered, _ = lax.while_loop(
        lambda carry: carry[1][1] != last, enter,
        (nobody, next_in_line(nobody, jnp.iinfo(jnp.int32).min)),
    )
    return entered
