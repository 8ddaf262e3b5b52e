"""Orca: iteration-level scheduling, first come first served, KV reserved to the end.

Every iteration runs all admitted requests: whole prompts and decodes together (selective batching).
A request reserves KV for prompt and output when it is first scheduled; so nothing is ever preempted
and nothing deadlocks, at the price of the unused part of the reservation.
"""

import jax.numpy as jnp

from cbjax.core import rules
from cbjax.core.limits import blocks_for
from cbjax.core.policy import Policy, Traits, no_state, require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.steady import while_nobody_can_enter
from cbjax.core.view import View
from cbjax.policies._reservation import reservation_number, reserved_slots


def orca(max_bs: int = 8, reservation: str = "oracle") -> Policy:
    """Orca with its own name for the batch limit.

    Args:
        max_bs: most requests in an iteration.
        reservation: KV slots of an output. "oracle": `max_tokens`, as in Orca's own paper, which is
            the true length where answers are as long as asked; "pow2": `max_tokens` rounded up to
            a power of two; "max": all that a sequence may have.

    Raises:
        ValueError: `max_bs` is not a whole number of at least 1, or there is no such reservation.

    Source: Orca (OSDI 2022), section 4.2, algorithm 1, with one pipeline stage; the variants of
    `reservation` are those of PagedAttention (SOSP 2023), section 6.1. The paper has no bound on an
    iteration's tokens; here `Limits.tokens` is one.
    """
    require_positive(max_bs=max_bs)
    return Policy(
        knobs=dict(max_bs=max_bs, reservation=reservation_number(reservation)), name="orca",
        init=no_state, decide=_decide, steady=_steady, seats="max_bs",
        traits=Traits(whole_prompts=True, reserves_output=True),
    )


def _decide(knobs: dict, state: tuple, view: View):
    rows = view.rows
    grant = jnp.where(view.seated, 1, 0)

    def offer(row, queue: rules.Queue) -> rules.Offer:
        limited_by = _limited_by(knobs, view, row, queue.budget, queue.free)
        return rules.Offer(rows.prompt[row], _slots(knobs, view, row), limited_by)

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


def _steady(knobs: dict, state: tuple, view: View):
    """A token for each; the queue stops at the first request while seats or blocks lack."""
    head, left = rules.first_in_line(view), view.iteration_tokens - view.num_running
    return while_nobody_can_enter(
        view, seats=knobs["max_bs"],
        held_up=_limited_by(knobs, view, head, left, view.free_blocks),
    )


def _limited_by(knobs: dict, view: View, row, budget, free):
    """Why the row may not start with so many tokens and free blocks left, if it may not."""
    prompt = view.rows.prompt[row]
    slots = _slots(knobs, view, row)
    return jnp.select(
        [prompt > budget, blocks_for(slots, view.system.block_size) > free],
        [int(LimitedBy.BUDGET), int(LimitedBy.BLOCKS)],
        int(LimitedBy.QUEUE_EMPTY),
    )


def _slots(knobs: dict, view: View, row):
    """KV slots that the row owns from its start."""
    rows = view.rows
    return reserved_slots(knobs["reservation"], rows.prompt[row], rows.max_tokens[row], view.system)
