"""vLLM's V1 scheduler as it first stood alone: no whole-prompt gate, no watermark.

A prompt is admitted if its first chunk fits, so a long request that was preempted may come back at
once, fill what it gave back and be preempted again; later releases gate admission (`vllm`).
"""

from functools import partial

from cbjax.core.policy import Policy, Traits
from cbjax.policies.vllm import ORDERS, check, decide, start, steady


def vllm_0_11(
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    enable_chunked_prefill: bool = True,
    long_prefill_token_threshold: int = 0,
    policy: str = "fcfs",
    enable_prefix_caching: bool = False,
) -> Policy:
    """vLLM 0.11 with its own knobs, names and defaults.

    Args:
        max_num_batched_tokens: token budget of an iteration, decodes included.
        max_num_seqs: seats.
        enable_chunked_prefill: a prompt may be split over iterations. Without it a prompt that
            exceeds what is left of the budget is passed by, and those behind it are asked.
        long_prefill_token_threshold: most tokens of one request in an iteration; 0 = no bound.
            Applied to a request that is alone, too.
        policy: "fcfs", or "priority": the request with the smallest `priority` is admitted first
            and preempted last; ties by arrival.
        enable_prefix_caching: full blocks are found again by their tokens; free blocks are handed
            out in the order in which they were freed. The original has it on by default; here it
            needs token ids, so it is a choice.

    Raises:
        ValueError: a knob is out of range, or the budget is below the seats.

    Source: vLLM 0.11.0, `vllm/v1/core/sched/scheduler.py`. Two of its faults are left out: those
    who were passed by changed places in the queue, and under "priority" a victim that had been
    served in the same iteration kept its tokens of the budget.
    """
    check(max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold, policy)
    knobs = dict(
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
        enable_chunked_prefill=enable_chunked_prefill,
        long_prefill_token_threshold=long_prefill_token_threshold,
        # What later releases may do and this one does not.
        scheduler_reserve_full_isl=False, watermark=0.0,
    )
    return Policy(
        knobs=knobs, name="vllm_0_11", init=start, decide=_DECIDE[policy], seats="max_num_seqs",
        budget="max_num_batched_tokens", steady=_STEADY[policy],
        traits=Traits(
            shares=enable_prefix_caching, register_at="schedule", free_order="oldest_first"
        ),
    )


_DECIDE = {name: partial(decide, priority=name == "priority", older=True) for name in ORDERS}
_STEADY = {name: partial(steady, priority=name == "priority", older=True) for name in ORDERS}
