"""Ready-made parts of a composed policy: order, admit, chunk, victim (see `cbjax.core.compose`).

Each is a small pure function of what it decides on. Parts that come with a number are built by a
call, `whole_prompt_fits(watermark=0.01)`; the others are given as they are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import rules, victims
from cbjax.core.limits import blocks_for
from cbjax.core.policy import require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW
from cbjax.core.view import View

Part = Callable[..., Any]

# --- order: keys per row, smallest first ---


def arrival(view: View):
    """The queue as it stands: by arrival, preempted requests before all others."""
    return view.rows.queue_order


def shortest_prompt_first(view: View):
    """Fewest prompt tokens first; long prompts may starve."""
    return view.rows.prompt


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


# --- victim: who keeps a seat when blocks run out, along the run order ---


def last_admitted(view: View, need, freed) -> Bool[Array, "S"]:
    """The latest admission makes room first."""
    keep = victims.survivors(need, freed, view.free_blocks, view.seated)
    return jnp.arange(need.shape[0]) < keep


def fewest_outputs(view: View, need, freed) -> Bool[Array, "S"]:
    """Whoever has the fewest output tokens makes room first: the least is recomputed."""
    rows = view.rows
    return _give_way(view, need, freed, view.in_run_order(rows.known - rows.prompt))


def lowest_priority(view: View, need, freed) -> Bool[Array, "S"]:
    """Whoever has the greatest priority number makes room first."""
    return _give_way(view, need, freed, -view.in_run_order(view.rows.priority))


def none(view: View, need, freed) -> Bool[Array, "S"]:
    """Nobody: only for requests that own all their blocks from the start."""
    return view.seated


def _give_way(view: View, need, freed, keys: Int[Array, "S"]) -> Bool[Array, "S"]:
    """Drop the smallest key, of equal ones the latest admission, until the others fit."""
    place = jnp.arange(keys.shape[0])

    def lacks(stays):
        free = view.free_blocks + jnp.sum(jnp.where(stays, 0, freed))
        return jnp.sum(jnp.where(stays, need, 0)) > free

    def drop(stays):
        least = jnp.min(jnp.where(stays, keys, jnp.iinfo(jnp.int32).max))
        victim = jnp.max(jnp.where(stays & (keys == least), place, NO_ROW))
        return stays & (place != victim)

    return lax.while_loop(lacks, drop, view.seated)
