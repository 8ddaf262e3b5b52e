"""Orca: iteration-level scheduling, first come first served, KV reserved to the end.

Every iteration runs all admitted requests: whole prompts and decodes together (selective batching).
A request reserves KV for `max_tokens` slots, prompt and output, when it is first scheduled; so
nothing is ever preempted and nothing deadlocks, at the price of the unused part of the reservation.
"""

import jax.numpy as jnp

from cbjax.core import rules
from cbjax.core.limits import blocks_for
from cbjax.core.policy import Policy, Traits, no_state, require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.view import View


def orca(max_bs: int = 8) -> Policy:
    """Orca with its own name for the batch limit.

    Args:
        max_bs: most requests in an iteration.

    Raises:
        ValueError: `max_bs` is not a whole number of at least 1.

    Source: Orca (OSDI 2022), section 4.2, algorithm 1, with one pipeline stage. The paper has no
    bound on an iteration's tokens; here `Limits.tokens` is one.
    """
    require_positive(max_bs=max_bs)
    return Policy(
        knobs=dict(max_bs=max_bs), name="orca", init=no_state, decide=_decide, seats="max_bs",
        traits=Traits(whole_prompts=True, reserves_output=True),
    )


def _decide(knobs: dict, state: tuple, view: View):
    rows = view.rows
    grant = jnp.where(view.seated, 1, 0)

    def offer(row, queue: rules.Queue) -> rules.Offer:
        prompt = rows.prompt[row]
        slots = prompt + rows.max_tokens[row]
        limited_by = jnp.select(
            [prompt > queue.budget, blocks_for(slots, view.system.block_size) > queue.free],
            [int(LimitedBy.BUDGET), int(LimitedBy.BLOCKS)],
            int(LimitedBy.QUEUE_EMPTY),
        )
        return rules.Offer(prompt, slots, limited_by)

    queue = rules.admit_in_order(
        view,
        rules.start_queue(
            view,
            budget=view.iteration_tokens - view.num_running,
            seats=knobs["max_bs"] - view.num_running,
            free=view.free_blocks,
            grant=view.per_row(grant),
            kv_tokens=jnp.zeros_like(rows.held),
        ),
        offer,
        True,
    )
    return rules.decide(view, queue), state
