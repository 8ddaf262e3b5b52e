"""vLLM's V1 scheduler: running requests first, chunked prefill, recompute preemption.

One token budget for everything. Running requests are served in the order of their latest admission;
when blocks run out the last of them is preempted. Then, in an iteration that preempted nothing,
waiting requests are admitted until the first that does not fit. Rules as of vLLM 0.32 (first come,
first served, no prefix caching).
"""

import jax.numpy as jnp

from cbjax.core import rules
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import Policy, require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.view import View


def vllm(
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    enable_chunked_prefill: bool = True,
    long_prefill_token_threshold: int = 0,
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
        scheduler_reserve_full_isl: admit a request only if blocks for all its known tokens are
            free, not just for its first chunk.
        watermark: share of the blocks that must stay free when a request is admitted while others
            run.

    Raises:
        ValueError: a knob is out of range, or the budget is below the seats.

    Source: vLLM 0.32, `vllm/v1/core/sched/scheduler.py`; recorded decisions of that release.
    """
    require_positive(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs)
    if max_num_batched_tokens < max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens = {max_num_batched_tokens} is below max_num_seqs = "
            f"{max_num_seqs}: a full batch of decodes would not fit; raise the budget or lower the "
            "seats"
        )
    if long_prefill_token_threshold < 0:
        raise ValueError(
            f"long_prefill_token_threshold = {long_prefill_token_threshold}: give 0 for no bound, "
            "or a number of tokens"
        )
    if not 0.0 <= watermark < 1.0:
        raise ValueError(f"watermark = {watermark}: give a share of the blocks, 0 <= share < 1")
    knobs = dict(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enable_chunked_prefill=enable_chunked_prefill,
        long_prefill_token_threshold=long_prefill_token_threshold,
        scheduler_reserve_full_isl=scheduler_reserve_full_isl,
        watermark=watermark,
    )
    return Policy(
        knobs=knobs, name="vllm", init=_init, decide=_decide, seats="max_num_seqs",
        budget="max_num_batched_tokens",
    )


def _init(knobs: dict, limits: Limits, system: System):
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


def _decide(knobs: dict, watermark_blocks, view: View):
    budget = knobs["max_num_batched_tokens"]
    threshold = knobs["long_prefill_token_threshold"]
    alone = view.num_running + view.num_waiting == 1
    bounded = (threshold > 0) & ~alone
    block_size = view.system.block_size

    def chunk(tokens):
        return jnp.where(bounded, jnp.minimum(tokens, threshold), tokens)

    computed = view.in_run_order(view.rows.computed)
    held = view.in_run_order(view.rows.held)
    want = chunk(view.in_run_order(view.rows.known) - computed)
    grant = rules.fill_in_order(want, budget)
    need = jnp.maximum(blocks_for(computed + grant, block_size) - held, 0)
    need = jnp.where(grant > 0, need, 0)
    keep = rules.survivors(need, view.in_run_order(view.freed), view.free_blocks, view.seated)
    stays = jnp.arange(need.shape[0]) < keep
    grant = jnp.where(stays, grant, 0)
    preempt = view.per_row(view.seated & ~stays)
    preempts = keep < view.num_running

    def offer(row, queue: rules.Queue) -> rules.Offer:
        known = view.rows.known[row]
        tokens = chunk(known)
        whole = knobs["enable_chunked_prefill"] | (tokens <= queue.budget)
        tokens = jnp.minimum(tokens, queue.budget)
        must_fit = jnp.where(knobs["scheduler_reserve_full_isl"], known, tokens)
        lacks = blocks_for(must_fit, block_size)
        runs = queue.seats < knobs["max_num_seqs"]
        kept_free = jnp.where(runs, watermark_blocks, 0)
        limited_by = jnp.select(
            [~whole, lacks > queue.free, lacks + kept_free > queue.free],
            [int(LimitedBy.BUDGET), int(LimitedBy.BLOCKS), int(LimitedBy.WATERMARK)],
            int(LimitedBy.QUEUE_EMPTY),
        )
        return rules.Offer(tokens, tokens, limited_by)

    queue = rules.admit_in_order(
        view,
        rules.start_queue(
            view,
            budget=budget - jnp.sum(grant),
            seats=knobs["max_num_seqs"] - view.num_running,
            free=view.free_blocks - jnp.sum(jnp.where(stays, need, 0)),
            grant=view.per_row(grant),
            kv_tokens=view.per_row(jnp.where(grant > 0, computed + grant, 0)),
            limited_by=jnp.where(preempts, int(LimitedBy.PREEMPTING), int(LimitedBy.QUEUE_EMPTY)),
        ),
        offer,
        ~preempts,
    )
    return rules.decide(view, queue, preempt=preempt), watermark_blocks
