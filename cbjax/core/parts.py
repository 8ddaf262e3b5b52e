"""Ready-made parts of a composed policy: order, admit, chunk, victim (see `cbjax.core.compose`).

Each is a small pure function of what it decides on. Parts that come with a number are built by a
call, `whole_prompt_fits(watermark=0.01)`; the others are given as they are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

from cbjax.core import rules, victims
from cbjax.core.limits import blocks_for
from cbjax.core.policy import require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_PREDICTION
from cbjax.core.view import View

Part = Callable[..., Any]

# --- order: keys per row, smallest first ---


def arrival(view: View):
    """The queue as it stands: by arrival."""
    return view.rows.queue_order


def shortest_prompt_first(view: View):
    """Fewest prompt tokens first; long prompts may starve."""
    return view.rows.prompt


def shortest_answer_first(view: View):
    """Fewest predicted output tokens first, or fewest allowed ones where nobody predicts.

    Long answers may starve.
    """
    rows = view.rows
    return jnp.where(rows.predicted == NO_PREDICTION, rows.max_tokens, rows.predicted)


def priority(view: View):
    """Smallest priority number first, as vLLM has it."""
    return view.rows.priority


def longest_waiting(view: View):
    """Earliest entry into the queue first; a preemption is a new entry."""
    return view.rows.queued.seconds, view.rows.queued.nanoseconds


# --- admit: what the next in line must own, and why it may not start ---


def first_chunk_fits(view: View, queue: rules.Queue, row, tokens) -> rules.Offer:
    """Start when blocks for the tokens of this iteration are free."""
    lacks = blocks_for(tokens, view.system.block_size) > queue.free
    return rules.Offer(tokens, tokens, jnp.where(lacks, int(LimitedBy.BLOCKS), 0))


def whole_prompt_fits(watermark: float = 0.0) -> Part:
    """Start when blocks for all known tokens are free.

    Args:
        watermark: share of the blocks that must stay free while others run, in whole blocks.
    """
    if not 0.0 <= watermark < 1.0:
        raise ValueError(f"watermark = {watermark}: give a share of the blocks, 0 <= share < 1")
    return partial(_whole_prompt_fits, watermark=watermark)


def _whole_prompt_fits(view: View, queue: rules.Queue, row, tokens, watermark) -> rules.Offer:
    lacks = blocks_for(view.rows.known[row], view.system.block_size)
    runs = (view.num_running > 0) | (queue.admitted > 0)
    kept = jnp.where(runs, jnp.floor(watermark * view.system.num_blocks).astype(jnp.int32), 0)
    limited_by = jnp.select(
        [lacks > queue.free, lacks + kept > queue.free],
        [int(LimitedBy.BLOCKS), int(LimitedBy.WATERMARK)],
        int(LimitedBy.QUEUE_EMPTY),
    )
    return rules.Offer(tokens, tokens, limited_by)


def reserves_output(view: View, queue: rules.Queue, row, tokens) -> rules.Offer:
    """Start when blocks for the prompt and the whole output are free, and own them at once.

    The last output token needs none: nothing attends to it.
    """
    owned = view.rows.prompt[row] + view.rows.max_tokens[row] - 1
    lacks = blocks_for(owned, view.system.block_size) > queue.free
    return rules.Offer(tokens, owned, jnp.where(lacks, int(LimitedBy.BLOCKS), 0))


# --- chunk: tokens to take of a request's pending ones ---


def fcfs_chunks(pending, left):
    """As many as are left: a long prompt fills the iteration and goes on in the next."""
    return jnp.minimum(pending, left)


def whole_prompts(pending, left):
    """All or nothing."""
    return jnp.where(pending <= left, pending, 0)


def capped(threshold: int) -> Part:
    """As many as are left, at most `threshold` of one request."""
    require_positive(threshold=threshold)
    return partial(_capped, threshold=threshold)


def _capped(pending, left, threshold):
    return fcfs_chunks(jnp.minimum(pending, threshold), left)


# --- victim: the running rows' turns, and who goes when blocks run out ---


def last_admitted(view: View, want, budget) -> victims.Served:
    """The latest admission makes room first."""
    return victims.last_in_line(view, want, budget)


def fewest_outputs(view: View, want, budget) -> victims.Served:
    """Whoever has the fewest output tokens makes room first: the least is recomputed."""
    outputs = view.in_run_order(view.rows.known - view.rows.prompt)
    return victims.serve_in_turn(view, want, budget, -outputs)


def lowest_priority(view: View, want, budget) -> victims.Served:
    """Whoever has the greatest priority number makes room first."""
    return victims.serve_in_turn(view, want, budget, view.in_run_order(view.rows.priority))


def longest_prompt(view: View, want, budget) -> victims.Served:
    """Whoever has the longest prompt makes room first, whatever it has answered so far."""
    return victims.serve_in_turn(view, want, budget, view.in_run_order(view.rows.prompt))


def most_blocks(view: View, want, budget) -> victims.Served:
    """Whoever holds the most blocks makes room first: the fewest victims, the dearest ones."""
    return victims.serve_in_turn(view, want, budget, view.in_run_order(view.rows.held))


def none(view: View, want, budget) -> victims.Served:
    """Nobody has to: only for requests that own all their blocks from the start."""
    return victims.last_in_line(view, want, budget)
