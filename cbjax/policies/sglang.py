"""SGLang's scheduler: prefill first, an estimated reserve for running requests, retraction.

Whenever waiting requests can be admitted, the iteration is a prefill batch and decodes stand still
(in mixed mode they ride along); one request at a time may be left in the middle of its prefill.
Running requests are expected to need a share of their remaining output, `new_token_ratio`, which
falls with every decode step and is set anew when memory runs out and requests are retracted. With
the radix cache, prefixes are found again and evicted leaf by leaf. Rules as of SGLang 0.5.5.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from cbjax.core import rules, runlist
from cbjax.core.decision import Requeue
from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.rows import NO_ROW, Status
from cbjax.core.view import View
from cbjax.policies import _sglang_cached as cache
from cbjax.policies import _sglang_ratio as ratios
from cbjax.policies._sglang_admission import CLIP, Adder, Admission
from cbjax.policies._sglang_decode import decode
from cbjax.policies._sglang_order import ORDERS
from cbjax.policies._sglang_prefill import prefill
from cbjax.policies._sglang_state import Carried, merge, steady, unseen


def sglang(
    max_running_requests: int = 256,
    chunked_prefill_size: int = 4096,
    max_prefill_tokens: int = 16384,
    schedule_policy: str = "fcfs",
    schedule_conservativeness: float = 1.0,
    enable_mixed_chunk: bool = False,
    disable_overlap_schedule: bool = False,
    ignore_eos: bool = False,
    enable_priority_scheduling: bool = False,
    priority_scheduling_preemption_threshold: int = 10,
    schedule_low_priority_values_first: bool = False,
    init_new_token_ratio: float = 0.7,
    min_new_token_ratio_factor: float = 0.14,
    new_token_ratio_decay_steps: int = 600,
    retract_decode_steps: int = 20,
    disable_radix_cache: bool = True,
    keep_finished: bool = False,
    check_memory: bool = True,
) -> Policy:
    """SGLang with its own knobs, names and defaults (the first two depend on the device there).

    Args:
        max_running_requests: seats.
        chunked_prefill_size: most prefill tokens of an iteration, a whole number of pages; -1 = no
            bound but the most tokens of an iteration.
        max_prefill_tokens: prefill tokens of an iteration; the first request may exceed them.
        schedule_policy: "fcfs"; "lof" (largest `max_tokens` first); "random"; "lpm" (longest
            cached prefix first, while at most 128 wait) and "dfs-weight" (most waiting requests
            below a branch of the tree first), which are "fcfs" without the radix cache.
        schedule_conservativeness: scales `init_new_token_ratio`.
        enable_mixed_chunk: decodes ride along with a prefill batch.
        disable_overlap_schedule: decide with the results of the last iteration, not of the one
            before it.
        ignore_eos: requests run to `max_tokens`, so admission follows their known ends instead of
            an estimate; not with the radix cache. A setting of each request there.
        enable_priority_scheduling: more urgent requests first, and in place of running ones.
        priority_scheduling_preemption_threshold: a request makes room if its priority differs by
            more.
        schedule_low_priority_values_first: small numbers are urgent, instead of large ones.
        init_new_token_ratio, min_new_token_ratio_factor, new_token_ratio_decay_steps: where the
            ratio starts, the part of it where it ends, the decode steps between.
        retract_decode_steps: decode steps that a retraction should last for.
        disable_radix_cache: False shares prefixes by their tokens. The original has the cache on
            by default; here it needs token ids, so it is a choice.
        keep_finished: the original's fault: a request that ended keeps its place until the next
            decode step, so it takes a seat, and a batch that was full stays closed for an idle
            iteration in which requests wait.
        check_memory: False is the original's fault: decodes of a mixed batch are admitted without
            memory, a chunk may be empty, and a request that fits the pool but not the estimate
            waits for ever.

    Raises:
        ValueError: a knob is out of range.

    Source: SGLang 0.5.5.post3, `python/sglang/srt/managers/{scheduler,schedule_policy,
    schedule_batch}.py`; recorded decisions of that release. Beyond it: a request that lacks memory
    may take it from less urgent ones, not only one that lacks a seat, and what victims hold counts
    beside their estimate (issue 14872); when a single running request lacks memory, the request in
    the middle of its prefill is retracted.
    """
    require_positive(
        max_running_requests=max_running_requests, max_prefill_tokens=max_prefill_tokens,
        new_token_ratio_decay_steps=new_token_ratio_decay_steps,
    )
    if chunked_prefill_size != -1:
        require_positive(chunked_prefill_size=chunked_prefill_size)
    if schedule_policy not in ORDERS:
        raise ValueError(f"schedule_policy = {schedule_policy!r}: choose one of {list(ORDERS)}")
    for name, value in (
        ("schedule_conservativeness", schedule_conservativeness),
        ("init_new_token_ratio", init_new_token_ratio),
        ("min_new_token_ratio_factor", min_new_token_ratio_factor),
        ("retract_decode_steps", retract_decode_steps),
        ("priority_scheduling_preemption_threshold", priority_scheduling_preemption_threshold),
    ):
        if value < 0:
            raise ValueError(f"{name} = {value}: give 0 or more")
    if min_new_token_ratio_factor > 1:
        raise ValueError(
            f"min_new_token_ratio_factor = {min_new_token_ratio_factor}: the ratio falls; give 1 "
            "or less"
        )
    if enable_priority_scheduling and (ignore_eos or schedule_policy not in ("fcfs", "lof")):
        raise ValueError(
            f"enable_priority_scheduling with schedule_policy = {schedule_policy!r} and "
            f"ignore_eos = {ignore_eos}: priorities go with 'fcfs' and 'lof', without ignore_eos"
        )
    order = ORDERS[schedule_policy]
    if disable_radix_cache and schedule_policy in ("lpm", "dfs-weight"):
        order = ORDERS["fcfs"]
    knobs = dict(
        max_running_requests=max_running_requests, chunked_prefill_size=chunked_prefill_size,
        max_prefill_tokens=max_prefill_tokens, order=order,
        schedule_conservativeness=schedule_conservativeness,
        enable_mixed_chunk=enable_mixed_chunk, ignore_eos=ignore_eos and disable_radix_cache,
        enable_priority_scheduling=enable_priority_scheduling,
        priority_scheduling_preemption_threshold=priority_scheduling_preemption_threshold,
        schedule_low_priority_values_first=schedule_low_priority_values_first,
        init_new_token_ratio=init_new_token_ratio,
        min_new_token_ratio_factor=min_new_token_ratio_factor,
        new_token_ratio_decay_steps=new_token_ratio_decay_steps,
        retract_decode_steps=retract_decode_steps, keep_finished=keep_finished,
        check_memory=check_memory,
    )
    # With overlap one token is computed for nothing behind the last one, and needs KV.
    ahead = not disable_overlap_schedule
    return Policy(
        knobs=knobs, name="sglang", init=_INIT[ahead, not disable_radix_cache],
        decide=_DECIDE[ahead], steady=steady, advance=_ADVANCE[ahead],
        seats="max_running_requests",
        budget="chunked_prefill_size" if chunked_prefill_size > 0 else None,
        traits=Traits(
            lag=int(ahead), reserves_output=ahead, shares=not disable_radix_cache,
            register_at="compute" if disable_radix_cache else "prefill_done",
        ),
    )


def _init(
    knobs: dict, limits: Limits, system: System, *, ahead: bool, shares: bool
) -> Carried:
    size, page = int(knobs["chunked_prefill_size"]), int(system.block_size)
    seats = int(knobs["max_running_requests"])
    if size > 0 and size % page:
        raise ValueError(
            f"chunked_prefill_size = {size} is not a multiple of block_size = {page}: a chunk is a "
            "whole number of pages"
        )
    if limits.tokens < max(seats, page):
        raise ValueError(
            f"limits.tokens = {limits.tokens} is below max_running_requests = {seats} or "
            f"block_size = {page}: one token of every request and one page must fit an iteration"
        )
    initial = min(knobs["init_new_token_ratio"] * knobs["schedule_conservativeness"], 1.0)
    nobody = jnp.zeros(limits.rows, bool)
    return Carried(
        ratio=ratios.start(initial, knobs["min_new_token_ratio_factor"]),
        full=jnp.bool_(False), chunked=jnp.int32(NO_ROW), member=nobody, ghosts=jnp.int32(0),
        last=nobody, last_size=jnp.int32(0), fresh=nobody,
        unseen=jnp.zeros(limits.rows, jnp.int32), idle=jnp.int32(2), turn=jnp.int32(0),
        cached=cache.start(limits.rows, limits.blocks, int(ahead)) if shares else None,
    )


def _decide(knobs: dict, carried: Carried, view: View, *, ahead: bool):
    """A prefill batch if there is one to build, otherwise a decode step."""
    rows = view.rows
    # The original resets the ratio when a turn of its loop has neither work nor results.
    resets = carried.idle >= (2 if ahead else 1)
    carried = replace(
        carried, ratio=jax.tree.map(
            lambda new, old: jnp.where(resets, new, old), ratios.reset(carried.ratio),
            carried.ratio,
        ),
        unseen=jnp.where(rows.status == Status.WAITING, 0, carried.unseen),
    )
    carried, view = merge(knobs, carried, view)
    pool = None
    if carried.cached is not None:
        pool, view = cache.take_in(carried.cached, carried.chunked, view)
    tokens = rows.known - carried.unseen
    left = jnp.minimum(rows.max_tokens - (tokens - rows.prompt), CLIP)
    rule = Admission(knobs, view, carried.ratio, tokens, left, carried.member)
    crossing = carried.member & (lax.rem(rows.computed, view.system.block_size) == 0)
    queue, carried, goes, keys = prefill(knobs, carried, view, rule, crossing, pool)
    adder: Adder = queue.extra
    built = goes | (queue.admitted > 0)
    step, pool = decode(knobs, carried, view, tokens, crossing, adder.pool, ~built)

    batch = carried.member & ~adder.victims
    rides = batch & knobs["enable_mixed_chunk"]
    prefills = queue.admit | (goes & (jnp.arange(batch.shape[0]) == carried.chunked))
    decodes = jnp.where(built, rides, step.stays)
    grant = queue.grant + decodes
    preempt = jnp.where(built, adder.victims, step.preempt)
    running = jnp.where(built, runlist.remove(view.running, preempt), step.running)
    chunked = jnp.where(built, adder.chunked, step.chunked)
    shared: dict[str, Any] = {}
    remembered = None
    if pool is not None:
        pool = cache.launch(pool, view, grant, prefills, decodes)
        shared = dict(shared=pool.shared, queue_order=keys)
        remembered = cache.remember(
            carried.cached, pool, view, cache.Formed(
                grant, prefills, decodes, queue.admit_order, running, carried.chunked, chunked
            ),
            (rows.status == Status.RUNNING) & ~preempt | queue.admit,
        )
    decision = rules.decide(
        view, queue, grant=grant, kv_tokens=jnp.where(grant > 0, rows.computed + grant, 0),
        preempt=preempt, preempt_order=jnp.where(built, adder.order, step.order),
        requeue=jnp.full(rows.held.shape, int(Requeue.END), jnp.int32), running=running, **shared,
    )
    last = built & (prefills | rides)
    works = built | jnp.any(decodes)
    before = jnp.sum(carried.member) + carried.ghosts
    shrinks = ~built & (jnp.sum(step.stays) < before)
    mixed = built & knobs["enable_mixed_chunk"]
    return decision, replace(
        carried,
        ratio=jax.tree.map(
            lambda new, old: jnp.where(built, old, new), step.ratio, carried.ratio
        ),
        full=carried.full & ~shrinks, chunked=chunked.astype(jnp.int32),
        member=jnp.where(built, batch & ~mixed, step.stays),
        ghosts=jnp.where(built & ~mixed, carried.ghosts, 0),
        last=last, last_size=jnp.sum(last), fresh=prefills & jnp.any(rides) & built,
        unseen=unseen(carried, rows, decodes, prefills, chunked, preempt) if ahead
        else carried.unseen,
        idle=jnp.where(works, 0, carried.idle + 1), turn=carried.turn + 1, cached=remembered,
    )


def _advance(
    knobs: dict, carried: Carried, view: View, turns, running, *, ahead: bool
) -> Carried:
    """Decode steps only: the ratio falls, the turns are counted."""
    runs = view.rows.status == Status.RUNNING
    return replace(
        carried, turn=carried.turn + turns,
        ratio=ratios.decay(carried.ratio, knobs["new_token_ratio_decay_steps"], turns),
        unseen=runs.astype(jnp.int32) if ahead else carried.unseen,
    )


_ADVANCE = {ahead: partial(_advance, ahead=ahead) for ahead in (False, True)}
_DECIDE = {ahead: partial(_decide, ahead=ahead) for ahead in (False, True)}
_INIT = {
    (ahead, shares): partial(_init, ahead=ahead, shares=shares)
    for ahead in (False, True) for shares in (False, True)
}

