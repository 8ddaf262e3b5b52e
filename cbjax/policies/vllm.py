"""vLLM's V1 scheduler: running requests first, chunked prefill, recompute preemption.

One token budget for everything. Running requests are served in the order of their latest admission;
when blocks run out the last of them is preempted, or the least urgent under `policy="priority"`.
Then, in an iteration that preempted nothing, waiting requests are admitted until the first that
does not fit. Rules as of vLLM 0.32.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp

from cbjax.core import rules, sharing, victims
from cbjax.core.decision import Requeue
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import MOMENTS, Policy, Traits, require_full_batch_fits
from cbjax.core.reasons import LimitedBy
from cbjax.core.sharing import Shared
from cbjax.core.steady import while_nobody_can_enter
from cbjax.core.view import View

ORDERS = ("fcfs", "priority")


def vllm(
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    enable_chunked_prefill: bool = True,
    long_prefill_token_threshold: int = 0,
    policy: str = "fcfs",
    enable_prefix_caching: bool = False,
    prefix_visible_at: str = "schedule",
    scheduler_reserve_full_isl: bool = True,
    watermark: float = 0.0,
) -> Policy:
    """vLLM V1 with its own knobs, names and defaults.

    Args:
        max_num_batched_tokens: token budget of an iteration, decodes included.
        max_num_seqs: seats.
        enable_chunked_prefill: a prompt may be split over iterations. Even without it a running
            prefill is cut by the budget, and by the threshold below.
        long_prefill_token_threshold: most tokens of one request in an iteration; 0 = no bound. Not
            applied to a request that is alone in the system.
        policy: "fcfs", or "priority": the request with the smallest `priority` is admitted first
            and preempted last; ties by arrival.
        enable_prefix_caching: full blocks are found again by their tokens. The original has it on
            by default; here it needs token ids, so it is a choice.
        prefix_visible_at: not a knob of the original's, which has "schedule": blocks are found
            from the moment they are scheduled, still in the same iteration. "compute": from the
            iteration after; "prefill_done": once the whole prompt is computed; "finish": once the
            request has ended.
        scheduler_reserve_full_isl: admit a request only if blocks for all its known tokens are
            free, not just for its first chunk.
        watermark: share of the blocks that must stay free when a request is admitted while others
            run.

    Raises:
        ValueError: a knob is out of range, or the budget is below the seats.

    Source: vLLM 0.32, `vllm/v1/core/sched/scheduler.py`; recorded decisions of that release.
    """
    check(max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold, policy)
    if not 0.0 <= watermark < 1.0:
        raise ValueError(f"watermark = {watermark}: give a share of the blocks, 0 <= share < 1")
    if prefix_visible_at not in MOMENTS:
        raise ValueError(f"prefix_visible_at = {prefix_visible_at!r}: choose one of {MOMENTS}")
    if prefix_visible_at != "schedule" and not enable_prefix_caching:
        raise ValueError(
            f"prefix_visible_at = {prefix_visible_at!r} without enable_prefix_caching: turn it on"
        )
    knobs = dict(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enable_chunked_prefill=enable_chunked_prefill,
        long_prefill_token_threshold=long_prefill_token_threshold,
        scheduler_reserve_full_isl=scheduler_reserve_full_isl,
        watermark=watermark,
    )
    traits = Traits(shares=enable_prefix_caching, register_at=prefix_visible_at)
    return Policy(
        knobs=knobs, name="vllm", init=start, decide=_DECIDE[policy, prefix_visible_at],
        seats="max_num_seqs", budget="max_num_batched_tokens", steady=_STEADY[policy],
        traits=traits,
    )


def check(
    max_num_batched_tokens: int, max_num_seqs: int, long_prefill_token_threshold: int, policy: str
) -> None:
    """The start-up rules of every V1 release.

    Raises:
        ValueError: naming the knob, its value and the remedy.
    """
    require_full_batch_fits(max_num_batched_tokens, max_num_seqs)
    if policy not in ORDERS:
        raise ValueError(f"policy = {policy!r}: choose one of {ORDERS}")
    if long_prefill_token_threshold < 0:
        raise ValueError(
            f"long_prefill_token_threshold = {long_prefill_token_threshold}: give 0 for no bound, "
            "or a number of tokens"
        )


def start(knobs: dict, limits: Limits, system: System):
    """Watermark in blocks; the original counts its null block, which is never handed out."""
    budget, length = int(knobs["max_num_batched_tokens"]), int(system.max_length)
    if not knobs["enable_chunked_prefill"] and budget < length:
        raise ValueError(
            f"max_num_batched_tokens = {budget} is below max_length = {length} although "
            "enable_chunked_prefill is off: a prompt must fit one iteration; raise the budget, "
            "shorten max_length or allow chunks"
        )
    # On the host, in 64-bit floats, so that the product rounds as the original's does.
    return jnp.int32(int(float(knobs["watermark"]) * (int(system.num_blocks) + 1)))


def decide(
    knobs: dict, watermark_blocks, view: View, *, priority: bool, older: bool = False,
    visible_at: str = "schedule",
):
    """One iteration; `older` has the rules of `vllm_0_11` where they differ."""
    at_once = visible_at == "schedule"
    budget = knobs["max_num_batched_tokens"]
    threshold = knobs["long_prefill_token_threshold"]
    alone = view.num_running + view.num_waiting == 1
    bounded = (threshold > 0) & (older | ~alone)
    block_size = view.system.block_size

    def chunk(tokens):
        return jnp.where(bounded, jnp.minimum(tokens, threshold), tokens)

    computed = view.in_run_order(view.rows.computed)
    want = chunk(view.in_run_order(view.rows.known) - computed)
    seats = jnp.arange(want.shape[0])
    shares = view.blocks is not None
    pool = sharing.untouched(view.blocks, view.rows.held) if shares else None
    if pool is not None and visible_at in ("compute", "prefill_done"):
        done = view.rows.computed
        if visible_at == "prefill_done":
            done = jnp.where(done >= view.rows.prompt, done, 0)
        pool = sharing.enter_computed(pool, view.token_ids, view.running, done, block_size)
    if pool is None and not priority:
        served = victims.last_in_line(view, want, budget)
    else:
        urgency = view.in_run_order(view.rows.priority) if priority else seats
        served = victims.serve_in_turn(view, want, budget, urgency, pool, at_once)
    preempts = served.preempted > 0

    def offer(row, queue: rules.Queue) -> rules.Offer:
        known = view.rows.known[row]
        found: Any = None
        hits = free_hits = jnp.int32(0)
        if pool is not None:
            found, hits, free_hits = sharing.hits(
                queue.extra, view.token_ids, row, known, block_size
            )
        start = hits * block_size
        tokens = chunk(known - start)
        whole = knobs["enable_chunked_prefill"] | (tokens <= queue.budget)
        tokens = jnp.minimum(tokens, queue.budget)
        must_fit = jnp.where(knobs["scheduler_reserve_full_isl"], known, start + tokens)
        # A hit that nobody holds is taken out of the free blocks like any other.
        lacks = blocks_for(must_fit, block_size) - hits + free_hits
        runs = queue.seats < knobs["max_num_seqs"]
        kept_free = jnp.where(runs, watermark_blocks, 0)
        limited_by = jnp.select(
            [~whole, lacks > queue.free, lacks + kept_free > queue.free],
            [int(LimitedBy.BUDGET), int(LimitedBy.BLOCKS), int(LimitedBy.WATERMARK)],
            int(LimitedBy.QUEUE_EMPTY),
        )
        passes = older & ~whole
        if pool is None:
            return rules.Offer(tokens, tokens, limited_by, passes=passes)
        new = blocks_for(start + tokens, block_size) - hits

        def take(shared: Shared) -> Shared:
            shared = sharing.attach(shared, row, found, hits, block_size)
            shared = sharing.grow(shared, row, new)
            if not at_once:
                return shared
            return sharing.enter(shared, view.token_ids, row, start + tokens, block_size)

        return rules.Offer(
            tokens, start + tokens, limited_by, blocks=new + free_hits, take=take, passes=passes
        )

    queue = rules.admit_in_order(
        view,
        rules.start_queue(
            view, budget=served.budget, seats=knobs["max_num_seqs"] - view.num_running,
            free=served.free, grant=view.per_row(served.grant),
            kv_tokens=view.per_row(jnp.where(served.grant > 0, computed + served.grant, 0)),
            limited_by=jnp.where(preempts, int(LimitedBy.PREEMPTING), int(LimitedBy.QUEUE_EMPTY)),
            extra=() if served.shared is None else served.shared,
        ),
        offer,
        ~preempts,
        view.rows.priority if priority else (),
    )
    if older:
        # Who was passed by waits for the budget, whoever came last.
        passed = (queue.limited_by == LimitedBy.QUEUE_EMPTY) & jnp.any(view.waiting & ~queue.admit)
        queue = replace(
            queue, limited_by=jnp.where(passed, int(LimitedBy.BUDGET), queue.limited_by)
        )
    room = dict(preempt=view.per_row(view.seated & ~served.stays))
    if pool is not None:
        room |= dict(shared=queue.extra)
    if priority:
        # A victim keeps its place: arrival decides among equals, before and after.
        room |= dict(
            preempt_order=view.per_row(served.order),
            requeue=jnp.full(view.rows.held.shape, int(Requeue.KEPT), jnp.int32),
        )
    return rules.decide(view, queue, **room), watermark_blocks


def steady(knobs: dict, watermark_blocks, view: View, *, priority: bool, older: bool = False):
    """A token for each; the queue stops at the first request while seats or blocks lack."""
    left = knobs["max_num_batched_tokens"] - view.num_running
    known = view.rows.known[rules.first_in_line(view, view.rows.priority if priority else ())]
    threshold = knobs["long_prefill_token_threshold"]
    # Somebody runs, so that nobody is alone.
    tokens = jnp.where(threshold > 0, jnp.minimum(known, threshold), known)
    whole = knobs["enable_chunked_prefill"] | (tokens <= left)
    must_fit = jnp.where(
        knobs["scheduler_reserve_full_isl"], known, jnp.minimum(tokens, left)
    )
    lacks = blocks_for(must_fit, view.system.block_size) > view.free_blocks
    # The older release looks behind a prompt that exceeds what is left.
    not_whole = LimitedBy.QUEUE_EMPTY if older else LimitedBy.BUDGET
    return while_nobody_can_enter(
        view, open_=left >= 0, seats=knobs["max_num_seqs"],
        held_up=jnp.select(
            [~whole, lacks], [int(not_whole), int(LimitedBy.BLOCKS)], int(LimitedBy.QUEUE_EMPTY)
        ),
    )


_DECIDE = {
    (name, moment): partial(decide, priority=name == "priority", visible_at=moment)
    for name in ORDERS for moment in MOMENTS
}
_STEADY = {name: partial(steady, priority=name == "priority") for name in ORDERS}
