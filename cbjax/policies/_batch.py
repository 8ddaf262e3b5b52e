"""A batch that is formed when nothing runs and computed as a whole until its last request ends."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core import rules
from cbjax.core.decision import Decision
from cbjax.core.limits import blocks_for
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW
from cbjax.core.view import View
from cbjax.policies._reservation import reserved_slots


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """The batch that runs: how many requests it was formed of, and its longest prompt."""

    size: Int[Array, ""]
    longest: Int[Array, ""]


def no_batch() -> Batch:
    """Before the first."""
    return Batch(size=jnp.int32(0), longest=jnp.int32(0))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Forming:
    """The batch while the queue is walked."""

    members: Int[Array, "S"]  # rows in the order in which they were taken
    count: Int[Array, ""]
    longest: Int[Array, ""]
    most_output: Int[Array, ""]


def form(
    view: View, *, most: Int[Array, ""], padded: Bool[Array, ""],
    reservation: Int[Array, ""] | int = 0, urgency: Int[Array, "P"] | tuple[()] = (),
) -> rules.Queue:
    """If nothing runs: the first of the queue that make up a batch, as many as have KV.

    Args:
        view: the table.
        most: most requests of a batch; one token of each must fit an iteration as well.
        padded: each owns KV for the longest prompt and the longest output of the batch.
        reservation: how an output's KV is counted, see `reserved_slots`.
        urgency: as in `rules.admit_in_order`.

    Returns:
        The walk; its `extra` is the batch as far as it was formed.
    """
    rows = view.rows
    idle = view.num_running == 0

    def offer(row, queue: rules.Queue) -> rules.Offer:
        forming: Forming = queue.extra
        prompt, output = rows.prompt[row], rows.max_tokens[row]
        longest = jnp.maximum(forming.longest, prompt)
        most_output = jnp.maximum(forming.most_output, output)
        size = view.system.block_size
        each = blocks_for(reserved_slots(reservation, longest, most_output, view.system), size)
        slots = reserved_slots(reservation, prompt, output, view.system)
        own = blocks_for(slots, size)
        lacks = jnp.where(
            padded, (forming.count + 1) * each > view.free_blocks, own > queue.free
        )
        grown = Forming(
            forming.members.at[forming.count].set(row, mode="drop"), forming.count + 1, longest,
            most_output,
        )
        limited_by = jnp.where(lacks, int(LimitedBy.BLOCKS), int(LimitedBy.QUEUE_EMPTY))
        return rules.Offer(jnp.int32(0), slots, limited_by, grown)

    nobody = Forming(
        jnp.full(view.running.shape, NO_ROW, jnp.int32), jnp.int32(0), jnp.int32(0), jnp.int32(0)
    )
    zeros = jnp.zeros_like(rows.held)
    waits = jnp.where(view.num_waiting > 0, int(LimitedBy.BATCH_RUNNING), 0)
    return rules.admit_in_order(
        view,
        rules.start_queue(
            view, budget=view.iteration_tokens, seats=jnp.minimum(most, view.iteration_tokens),
            free=view.free_blocks, grant=zeros, kv_tokens=zeros,
            limited_by=jnp.where(idle, int(LimitedBy.QUEUE_EMPTY), waits), extra=nobody,
        ),
        offer,
        idle,
        urgency,
    )


def carry_out(
    view: View, queue: rules.Queue, batch: Batch, *, size: Int[Array, ""],
    padded: Bool[Array, ""], reservation: Int[Array, ""] | int = 0, **more: Any
) -> tuple[Decision, Batch]:
    """Start the first `size` requests that `form` took, or go on with the batch that runs.

    Args:
        view: the table.
        queue: what `form` returned.
        batch: the batch that runs.
        size: how many of the formed batch start; 0 = none yet.
        padded: every prompt costs as much as the longest, a finished request keeps computing.
        reservation: as in `form`.
        more: further fields of the decision.

    Returns:
        The decision (prompts first, each whole, then a token of every request per iteration; KV
        for the whole output from the start), and the batch.
    """
    rows, idle = view.rows, view.num_running == 0
    formed = jnp.where(jnp.arange(view.running.shape[0]) < size, queue.extra.members, NO_ROW)
    members = jnp.where(idle, formed, view.running)

    def longest(values):
        return jnp.max(jnp.where(members != NO_ROW, values[members], 0))

    batch = Batch(
        size=jnp.where(idle, size, batch.size),
        longest=jnp.where(idle, longest(rows.prompt), batch.longest),
    )
    whole = reserved_slots(reservation, batch.longest, longest(rows.max_tokens), view.system)
    admit = queue.admit & (queue.admit_order < size)
    grant, extra = _tokens(rows, members, batch, padded, view.iteration_tokens)
    place = jnp.where(members != NO_ROW, members, admit.shape[0])
    decision = rules.decide(
        view, queue, admit=admit, grant=jnp.zeros_like(rows.held).at[place].set(grant, mode="drop"),
        kv_tokens=jnp.where(admit, jnp.where(padded, whole, queue.kv_tokens), 0),
        extra_tokens=extra, **more,
    )
    return decision, batch


def _tokens(rows, members, batch: Batch, padded, most):
    """Tokens of each member, and the padding computed beside them."""
    member = members != NO_ROW
    prompt = jnp.where(member, rows.prompt[members], 0)
    pending = member & (rows.computed[members] == 0)
    prompts_left = jnp.any(pending)
    want = jnp.where(pending, prompt, 0)
    at_once = jnp.maximum(most // jnp.maximum(batch.longest, 1), 1)
    prefill = jnp.where(
        padded,
        jnp.where(rules.exclusive_sum(pending.astype(jnp.int32)) < at_once, want, 0),
        rules.whole_in_order(want, most),
    )
    grant = jnp.where(prompts_left, prefill, jnp.where(member, 1, 0))
    padding = jnp.where(
        prompts_left,
        jnp.sum(jnp.where(prefill > 0, batch.longest - prefill, 0)),
        batch.size - jnp.sum(member),
    )
    return grant, jnp.where(padded, padding, 0).astype(jnp.int32)
