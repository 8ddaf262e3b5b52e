"""transformers' continuous batching: skip what does not fit, recompute at the end of the queue.

Running requests take blocks for the coming step only. One that gets none keeps its seat without
tokens while the others go on. The newest of these then give their blocks up: they wait behind all
others, their KV in the host pool if it fits there, and nobody is admitted until a request ends.
Rules as of transformers 5.24 without sliding windows and parallel sampling.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import runlist
from cbjax.core.decision import Requeue, nothing
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW, Status
from cbjax.core.view import View
from cbjax.policies._transformers import Candidates, Left, Served, serve, stored, victims

_MARGIN = {"fifo": 0.15, "prefill_first": 0.0}


def transformers(
    max_batch_tokens: int = 8192,
    max_requests_per_batch: int = 1024,
    scheduler_type: str = "fifo",
    max_blocks_per_request: int = 32,
    safety_margin: float | None = None,
    use_async_batching: bool = False,
    read_budget: int = 0,
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
        knobs=knobs, name="transformers", init=_init, decide=_decide,
        seats="max_requests_per_batch", budget="max_batch_tokens",
        traits=Traits(lag=int(use_async_batching), drops_in_flight=use_async_batching),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Progress:
    """What the policy remembers; `attempts` and `fast` only say how the last decision was made."""

    seated: Int[Array, "S"]  # rows in the order in which they got their seat; NO_ROW
    decoding: Bool[Array, "P"]  # rows whose prompt was scheduled to its end
    frozen: Bool[Array, ""]  # nobody is admitted until a request ends
    scarce: Int[Array, ""]  # free blocks below which the safety margin is touched
    reads: Int[Array, ""]  # KV entries that a batch may read
    attempts: Int[Array, ""]  # walks over the requests
    fast: Bool[Array, ""]  # the batch decodes on the fast path


def _init(knobs: dict, limits: Limits, system: System) -> Progress:
    blocks, size = int(system.num_blocks), int(system.block_size)
    longest = min(int(system.max_length), blocks * size)
    reads = int(knobs["read_budget"]) or blocks * size
    if reads < longest:
        raise ValueError(
            f"read_budget = {reads} is below the {longest} tokens that one request may have: it "
            "could never be read; raise the budget or shorten max_length"
        )
    # Both sides as the original has them: 64-bit floats, each rounded once.
    margin = float(knobs["safety_margin"])
    scarce = next(count for count in range(blocks + 1) if count / blocks >= margin)
    return Progress(
        seated=jnp.full(limits.seats, NO_ROW, jnp.int32), decoding=jnp.zeros(limits.rows, bool),
        frozen=jnp.bool_(False), scarce=jnp.int32(scarce), reads=jnp.int32(reads),
        attempts=jnp.int32(0), fast=jnp.bool_(False),
    )


def _decide(knobs: dict, progress: Progress, view: View):
    size = view.system.block_size
    frozen = progress.frozen & (view.finished == 0)
    running = view.rows.status == Status.RUNNING
    progress = replace(
        progress, decoding=progress.decoding & running,
        seated=runlist.remove(progress.seated, ~running),
    )
    rows, line = _candidates(knobs, view, progress), _line(view)
    served = serve(rows, _left(knobs, progress, view, view.free_blocks), size)
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
        second = serve(others, _left(knobs, progress, view, free), size)
        return _Made(others, second, victim=lost, again=jnp.any(lost))

    made = lax.cond(~scheduled & jnp.any(served.starved), again, lambda: once)
    # The batch is made; those that starve beside it make room for the next one.
    left = jax.tree.map(
        lambda first, second: jnp.where(made.again, second, first), entered.left, made.served.left
    )
    beside = victims(made.rows, replace(made.served, left=left)) & scheduled
    made = replace(made, victim=made.victim | beside)
    limited_by = _limited_by(view, line, frozen, made, entered, left)
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
    place = jnp.where(rows.rows != NO_ROW, rows.rows, count)

    def per_row(values):
        return jnp.zeros(count, values.dtype).at[place].set(values, mode="drop")

    grant = per_row(made.served.grant) + entered.grant
    reached = table.computed + grant
    preempt = per_row(made.victim)
    in_pool = per_row(stored(rows.held, made.victim, view.swap_blocks))
    seats = view.num_running - jnp.sum(made.victim)
    seated, _ = runlist.append_in_order(
        runlist.remove(progress.seated, preempt), seats, entered.admit, entered.order
    )
    decision = replace(
        nothing(view), admit=entered.admit, admit_order=entered.order, grant=grant,
        kv_tokens=jnp.where(grant > 0, reached, 0), preempt=preempt,
        # They line up, and are named, in the order of service: the one that went first is last.
        preempt_order=per_row(jnp.cumsum(made.victim) - 1),
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


def _limited_by(view: View, line, frozen, made: _Made, entered: "_Entered", left: Left):
    """Why the first that still waits was not admitted."""
    waits = view.waiting & ~entered.admit
    row = jnp.argmin(jnp.where(waits, line, jnp.iinfo(jnp.int32).max))
    tokens = jnp.minimum(view.rows.known[row] - view.rows.computed[row], left.tokens)
    reads = left.reads_allow(tokens, view.rows.computed[row])
    stop = made.served.stop
    stop = jnp.where(stop != LimitedBy.QUEUE_EMPTY, stop, entered.stop)
    return jnp.select(
        [
            ~jnp.any(waits) & jnp.any(made.victim), ~jnp.any(waits), frozen | made.again,
            stop != LimitedBy.QUEUE_EMPTY, ~reads,
        ],
        [
            int(LimitedBy.PREEMPTING), int(LimitedBy.QUEUE_EMPTY), int(LimitedBy.FREEZE), stop,
            int(LimitedBy.READS),
        ],
        int(LimitedBy.BLOCKS),
    )


def _candidates(knobs, view: View, progress: Progress) -> Candidates:
    """The running rows in order of service: two kinds, each in the order of their seats."""
    seated, decoding = progress.seated, progress.decoding
    alive = seated != NO_ROW
    first = alive & (decoding[seated] != knobs["prefill_first"])
    place = jnp.where(
        first, jnp.cumsum(first) - 1, jnp.sum(first) + jnp.cumsum(alive & ~first) - 1
    )
    place = jnp.where(alive, place, seated.shape[0])
    rows = jnp.full_like(seated, NO_ROW).at[place].set(seated, mode="drop")

    def along(values):
        return jnp.where(alive, values[rows], jnp.zeros((), values.dtype))

    return Candidates(
        rows=rows, alive=alive, want=along(view.rows.known - view.rows.computed),
        computed=along(view.rows.computed), held=along(view.rows.held), decoding=along(decoding),
    )


def _left(knobs, progress: Progress, view: View, free) -> Left:
    return Left(
        tokens=jnp.int32(knobs["max_batch_tokens"]),
        requests=jnp.int32(knobs["max_requests_per_batch"]), reads=progress.reads, free=free,
        fast=jnp.bool_(True), any=jnp.bool_(False), scarce=free < progress.scarce,
        short=jnp.int32(knobs["max_blocks_per_request"] * view.system.block_size),
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


def _line(view: View) -> Int[Array, "P"]:
    """Keys of the queue: requests with KV in the host pool and the others take turns."""
    order = view.rows.queue_order
    offloaded = view.rows.status == Status.SWAPPED
    others = view.waiting & ~offloaded

    def taking_turns():
        by = jnp.argsort(jnp.where(view.waiting, order, jnp.iinfo(jnp.int32).max))
        kind = offloaded[by]
        place = jnp.where(kind, 2 * jnp.cumsum(kind), 2 * jnp.cumsum(~kind) + 1)
        return jnp.zeros_like(order).at[by].set(place)

    return lax.cond(jnp.any(offloaded) & jnp.any(others), taking_turns, lambda: order)
