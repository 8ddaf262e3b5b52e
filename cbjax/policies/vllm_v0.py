"""vLLM's first engine, V0: prompts before decodes and never together, or, chunked, decodes first.

By default an iteration computes either whole prompts or one token of everything that runs: new
prompts make all decodes wait. With chunked prefill both share one token budget, running requests
first. When blocks run out the last running request goes, its KV dropped or moved to the host pool.
Groups of several sequences are not modelled.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cbjax.core import rules, time, victims
from cbjax.core.decision import Requeue
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import Policy, require_full_batch_fits
from cbjax.core.reasons import LimitedBy, Refusal
from cbjax.core.rows import NO_ROW, Status
from cbjax.core.steady import Steady, while_nobody_can_enter
from cbjax.core.view import View

_LAST = 2**31 - 1


def vllm_v0(
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    enable_chunked_prefill: bool = False,
    preemption_mode: str = "recompute",
    scheduler_delay_factor: float = 0.0,
    watermark: float = 0.01,
) -> Policy:
    """vLLM V0 with its own knobs, names and defaults, for requests of one sequence.

    The original dies when the host pool is full; here such a victim, and all later ones of the
    iteration, are computed again. It also drops a request that grew too large to be admitted again;
    here the watermark is waived for it when nothing runs.

    Args:
        max_num_batched_tokens: most prompt tokens of an iteration, chunked: most tokens. The
            original's own default is the longest sequence if that is more.
        max_num_seqs: seats.
        enable_chunked_prefill: split prompts over iterations and compute them beside decodes.
        preemption_mode: "recompute" drops a victim's KV; "swap" moves it to the host pool, and
            nobody is admitted (in the default mode) before all of those are back.
        scheduler_delay_factor: while others run, hold prompts back until the oldest has waited this
            many times the last prompt iteration's duration.
        watermark: share of the blocks that must stay free when a request is admitted or comes back.
            A prompt that would never leave them free is refused.

    Raises:
        ValueError: a knob is out of range, or the budget is below the seats.

    Source: vLLM 0.6.6 (2024-12-27), `vllm/core/{scheduler,block_manager}.py`, and 0.8.5
    (2025-04-28) for the order of the chunked mode's running requests.
    """
    require_full_batch_fits(max_num_batched_tokens, max_num_seqs)
    if preemption_mode not in ("recompute", "swap"):
        raise ValueError(
            f"preemption_mode = {preemption_mode!r}: choose one of ['recompute', 'swap']"
        )
    if scheduler_delay_factor < 0.0:
        raise ValueError(f"scheduler_delay_factor = {scheduler_delay_factor}: give 0 or more")
    if not 0.0 <= watermark < 1.0:
        raise ValueError(f"watermark = {watermark}: give a share of the blocks, 0 <= share < 1")
    knobs = dict(
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
        swap=preemption_mode == "swap", scheduler_delay_factor=scheduler_delay_factor,
        watermark=watermark,
    )
    init, decide = (_init, _chunked) if enable_chunked_prefill else (_init_whole, _whole)
    return Policy(
        knobs=knobs, name="vllm_v0", init=init, decide=decide, seats="max_num_seqs",
        budget="max_num_batched_tokens", steady=_STEADY[enable_chunked_prefill], advance=_advance,
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Carried:
    """What V0 carries from iteration to iteration."""

    watermark: Int[Array, ""]  # blocks that must stay free
    prompted: Bool[Array, ""]  # whether the last iteration admitted prompts
    latency: Float[Array, ""]  # seconds of the last one that did
    place: Int[Array, "P"]  # chunked: the part of the run order a row belongs to now, see `_PARTS`


_PARTS = range(6)  # not reached, swapped in, decodes, finished prompts, other prompts, new
_UNREACHED, _BACK, _DECODES, _ENDING, _PROMPTS, _NEW = _PARTS


def _init(knobs: dict, limits: Limits, system: System) -> _Carried:
    # On the host, in 64-bit floats, so that the product rounds as the original's does.
    watermark = int(float(knobs["watermark"]) * int(system.num_blocks))
    return _Carried(
        jnp.int32(watermark), jnp.bool_(False), jnp.float32(0.0),
        jnp.full(limits.rows, _NEW, jnp.int32),
    )


def _init_whole(knobs: dict, limits: Limits, system: System) -> _Carried:
    """The original's start-up rule; it also lets any victim be computed again at once."""
    budget, length = int(knobs["max_num_batched_tokens"]), int(system.max_length)
    if budget < length:
        raise ValueError(
            f"max_num_batched_tokens = {budget} is below max_length = {length} although "
            "enable_chunked_prefill is off: a prompt must fit one iteration; raise the budget, "
            "shorten max_length or allow chunks"
        )
    return _init(knobs, limits, system)


def _whole(knobs: dict, carried: _Carried, view: View):
    """Prompts if there are any to admit, otherwise decodes."""
    budget, zeros = knobs["max_num_batched_tokens"], jnp.zeros_like(view.rows.held)
    swapped = view.rows.status == Status.SWAPPED
    carried = _timed(carried, view)
    queue, refuse = _admit(
        knobs, carried, view,
        rules.start_queue(
            view, budget=budget, seats=knobs["max_num_seqs"] - view.num_running,
            free=view.free_blocks, grant=zeros, kv_tokens=zeros,
            limited_by=jnp.where(
                jnp.any(swapped), int(LimitedBy.FREEZE), int(LimitedBy.QUEUE_EMPTY)
            ),
        ),
        ~jnp.any(swapped), False,
    )
    prompts = queue.admitted > 0
    served = victims.last_in_line(view, jnp.where(view.seated, 1, 0), budget)
    stays = (view.seated & served.stays) | (prompts & view.seated)
    grant = jnp.where(prompts, 0, served.grant)
    lost = view.seated & ~stays
    kv_tokens = jnp.where(grant > 0, view.in_run_order(view.rows.known), 0)
    queue = replace(
        queue, budget=queue.budget - jnp.sum(grant),
        free=jnp.where(prompts, queue.free, served.free),
        grant=queue.grant + view.per_row(grant),
        kv_tokens=jnp.maximum(queue.kv_tokens, view.per_row(kv_tokens)),
    )
    queue = _swap_in(knobs, carried, view, queue, ~prompts & ~jnp.any(lost))
    decision = rules.decide(
        view, queue, refuse=refuse, swap_in=queue.admit & swapped, **_make_room(knobs, view, lost)
    )
    return decision, replace(carried, prompted=prompts)


def _chunked(knobs: dict, carried: _Carried, view: View):
    """Everything that runs, then who was swapped out, then new prompts, within one budget."""
    view = replace(view, running=_in_parts(view, carried.place))
    carried = _timed(carried, view)
    rows, swapped = view.rows, view.rows.status == Status.SWAPPED
    computed = view.in_run_order(rows.computed)
    left = view.in_run_order(rows.known) - computed
    served = victims.last_in_line(view, left, knobs["max_num_batched_tokens"])
    stays = view.seated & served.stays
    lost = view.seated & ~stays
    queue = rules.start_queue(
        view, budget=served.budget, seats=knobs["max_num_seqs"] - jnp.sum(stays),
        free=served.free + jnp.sum(jnp.where(lost, view.in_run_order(view.freed), 0)),
        grant=view.per_row(served.grant),
        kv_tokens=view.per_row(jnp.where(served.grant > 0, computed + served.grant, 0)),
    )
    queue = _swap_in(knobs, carried, view, queue, ~jnp.any(lost))
    came_back = queue.admitted
    queue, refuse = _admit(knobs, carried, view, queue, jnp.bool_(True), True)
    decision = rules.decide(
        view, queue, refuse=refuse, swap_in=queue.admit & swapped,
        running=jnp.where(stays, view.running, NO_ROW), **_make_room(knobs, view, lost),
    )
    place = jnp.select(
        [
            queue.admit & swapped, queue.admit, queue.grant == 0,
            rows.computed >= jnp.maximum(rows.prompt, rows.known - 1),
        ],
        [_BACK, _NEW, _UNREACHED, _DECODES],
        jnp.where(rows.computed + queue.grant == rows.known, _ENDING, _PROMPTS),
    )
    return decision, replace(
        carried, prompted=queue.admitted > came_back, place=place.astype(jnp.int32)
    )


def _steady(knobs: dict, carried: _Carried, view: View, *, chunks: bool) -> Steady:
    """A token for each while nobody waits, chunked: once all are in the part of the decodes."""
    settled = ~view.seated | (carried.place[view.running] == _DECODES) | (not chunks)
    fits = view.num_running <= knobs["max_num_batched_tokens"]
    return while_nobody_can_enter(view, open_=fits & jnp.all(settled))


def _advance(knobs: dict, carried: _Carried, view: View, turns, running) -> _Carried:
    """The last prompts are over."""
    return replace(_timed(carried, view), prompted=jnp.bool_(False))


_STEADY = {chunks: partial(_steady, chunks=chunks) for chunks in (False, True)}


def _in_parts(view: View, place) -> Int[Array, "S"]:
    """The run order by parts, each in its old order: the original rebuilds it so."""
    part = jnp.where(view.seated, place[view.running], len(_PARTS))
    kind = part[:, None] == jnp.arange(len(_PARTS))
    sizes = jnp.sum(kind, axis=0)
    before = jnp.cumsum(sizes) - sizes
    inside = jnp.cumsum(kind, axis=0) - 1
    seat = jnp.sum(jnp.where(kind, before + inside, 0), axis=1)
    seat = jnp.where(view.seated, seat, view.running.shape[0])
    return jnp.full_like(view.running, NO_ROW).at[seat].set(view.running, mode="drop")


def _timed(carried: _Carried, view: View) -> _Carried:
    latency = jnp.where(carried.prompted, time.as_float(view.last_duration), carried.latency)
    return replace(carried, latency=latency)


def _spared(knobs: dict, carried: _Carried, queue: rules.Queue):
    """Blocks to leave free: none for who would run alone, or it might never run."""
    return jnp.where(queue.seats < knobs["max_num_seqs"], carried.watermark, 0)


def _admit(knobs: dict, carried: _Carried, view: View, queue, open_, chunks: bool):
    """Waiting requests in order, KV for all known tokens; the ones that never fit are refused."""
    rows = view.rows
    waiting = view.waiting & (rows.status != Status.SWAPPED)
    needs = blocks_for(rows.known, view.system.block_size)
    waited = time.as_float(time.subtract(view.clock, rows.arrival))
    patience = jnp.float32(knobs["scheduler_delay_factor"]) * carried.latency
    held_back = (patience > 0) & (waited <= patience) & (view.num_running > 0)
    # Who is held back is not looked at: its refusal waits too, and so do those behind it.
    never = (rows.status == Status.WAITING) & ~held_back & (
        needs + carried.watermark > view.system.num_blocks
    )

    def offer(row, queue: rules.Queue) -> rules.Offer:
        tokens, lacks = rows.known[row], needs[row]
        whole = jnp.bool_(chunks) | (tokens <= queue.budget)
        limited_by = jnp.select(
            [
                held_back[row], lacks > queue.free,
                lacks + _spared(knobs, carried, queue) > queue.free, ~whole,
            ],
            [
                int(LimitedBy.WAIT_TIMER), int(LimitedBy.BLOCKS), int(LimitedBy.WATERMARK),
                int(LimitedBy.BUDGET),
            ],
            int(LimitedBy.QUEUE_EMPTY),
        )
        return rules.Offer(jnp.minimum(tokens, queue.budget), tokens, limited_by)

    after = _walk(view, queue, offer, open_ & waiting & ~never)
    rest = waiting & ~never & ~after.admit
    stop = jnp.min(jnp.where(rest, rows.queue_order, _LAST))
    refused = open_ & never & (rows.queue_order < stop)
    refuse = jnp.where(refused, int(Refusal.NEVER_FITS), int(Refusal.NONE))
    return after, refuse.astype(jnp.int32)


def _swap_in(knobs: dict, carried: _Carried, view: View, queue: rules.Queue, open_):
    """Who was swapped out comes back, the first one out first, with all its KV."""
    rows = view.rows
    # Rows swapped out later stand further in front of the queue.
    first_out = replace(view, rows=replace(rows, queue_order=-rows.queue_order))

    def offer(row, queue: rules.Queue) -> rules.Offer:
        known = rows.known[row]
        lacks = blocks_for(known, view.system.block_size)
        limited_by = jnp.select(
            [lacks > queue.free, lacks + _spared(knobs, carried, queue) > queue.free],
            [int(LimitedBy.BLOCKS), int(LimitedBy.WATERMARK)], int(LimitedBy.QUEUE_EMPTY),
        )
        return rules.Offer(jnp.minimum(known - rows.computed[row], queue.budget), known, limited_by)

    return _walk(first_out, queue, offer, open_ & (rows.status == Status.SWAPPED))


def _walk(view: View, queue: rules.Queue, offer, open_) -> rules.Queue:
    """One walk of an iteration; what stopped an earlier one stays on record if nothing stops it."""
    after = rules.admit_in_order(view, queue, offer, open_)
    limited_by = jnp.where(
        after.limited_by == LimitedBy.QUEUE_EMPTY, queue.limited_by, after.limited_by
    )
    return replace(after, limited_by=limited_by)


def _make_room(knobs: dict, view: View, lost: Bool[Array, "S"]) -> dict:
    """Victims, last running first, and where they go."""
    moved = jnp.where(lost, view.in_run_order(view.rows.held), 0)
    behind = jnp.cumsum(moved[::-1])[::-1]
    swaps = knobs["swap"] & lost & (behind <= view.swap_blocks)
    place = jnp.where(swaps, int(Requeue.SWAP_OUT), int(Requeue.FRONT))
    return dict(preempt=view.per_row(lost), requeue=view.per_row(place).astype(jnp.int32))
