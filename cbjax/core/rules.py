"""Building blocks of policies: prefix sums over the run order, and admission one by one.

Most of a policy is a prefix sum; what is truly sequential is the walk over the queue, which ends
at the first refusal and so costs by what it admits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.control import when
from cbjax.core.decision import Decision, nothing
from cbjax.core.limits import blocks_for
from cbjax.core.reasons import LimitedBy
from cbjax.core.view import View

Order = Int[Array, "P"] | tuple[Int[Array, "P"], ...]
_LAST = np.iinfo(np.int32).max


def exclusive_sum(values: Int[Array, "S"]) -> Int[Array, "S"]:
    """Sum of the values before each entry."""
    return jnp.cumsum(values) - values


def fill_in_order(want: Int[Array, "S"], budget: Int[Array, ""]) -> Int[Array, "S"]:
    """First come, first served shares of a budget: each takes what it wants of what is left."""
    return jnp.clip(budget - exclusive_sum(want), 0, want)


def whole_in_order(want: Int[Array, "S"], budget: Int[Array, ""]) -> Int[Array, "S"]:
    """Like `fill_in_order`, but all or nothing, and nothing behind the first that does not fit."""
    return jnp.where(jnp.cumsum(want) <= budget, want, 0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Queue:
    """The walk over the queue: what is left, what was taken, why it stopped."""

    budget: Int[Array, ""]  # tokens left
    seats: Int[Array, ""]  # seats left
    free: Int[Array, ""]  # free blocks left
    admitted: Int[Array, ""]
    admit: Bool[Array, "P"]
    admit_order: Int[Array, "P"]
    grant: Int[Array, "P"]
    kv_tokens: Int[Array, "P"]
    limited_by: Int[Array, ""]  # LimitedBy
    extra: Any = ()  # what a policy carries along its walk


@dataclass(frozen=True)
class Offer:
    """What an admission rule says of the head of the queue."""

    grant: Int[Array, ""]  # tokens to compute
    kv_tokens: Int[Array, ""]  # positions it must own
    limited_by: Int[Array, ""]  # LimitedBy if it is not admitted; QUEUE_EMPTY = it is
    extra: Any = ()
    blocks: Int[Array, ""] | None = None  # blocks it takes, if not those that `kv_tokens` lack
    take: Callable[[Any], Any] | None = None  # what becomes of `Queue.extra` if it is admitted
    passes: Bool[Array, ""] | bool = False  # if it is not admitted, the next one is asked


def admit_in_order(
    view: View, queue: Queue, offer: Callable[[Any, Queue], Offer],
    open_: Bool[Array, "*P"] | bool, order: Order = (),
) -> Queue:
    """Admit waiting rows one by one until the first that may not (head-of-line blocking).

    A row whose offer `passes` does not block those behind it.

    Args:
        view: the table.
        queue: seats, budget and blocks that are left; usually nothing admitted yet.
        offer: `(row, queue) -> Offer`, asked for the head of the queue.
        open_: False admits nothing and leaves `queue.limited_by` as it is; one per row leaves rows
            out as if they did not wait.
        order: keys of the rows, the first one first, smallest next in line; the queue order breaks
            ties and is all there is by default.

    Returns:
        The queue after the walk.
    """
    def walk(carry):
        queue, keys, row, _ = carry
        answer = offer(row, queue)
        blocks = answer.blocks
        if blocks is None:
            blocks = blocks_for(answer.kv_tokens, view.system.block_size) - view.rows.held[row]
        limited_by = jnp.where(
            queue.seats <= 0, int(LimitedBy.SEATS),
            jnp.where(queue.budget <= 0, int(LimitedBy.BUDGET), answer.limited_by),
        ).astype(jnp.int32)
        takes = limited_by == LimitedBy.QUEUE_EMPTY
        goes_on = takes | (answer.passes & (queue.seats > 0) & (queue.budget > 0))
        grant = jnp.where(takes, answer.grant, 0)
        if answer.take is not None:
            extra = when(takes, answer.take, queue.extra)
        else:
            extra = jax.tree.map(
                lambda new, old: jnp.where(takes, new, old), answer.extra, queue.extra
            )
        queue = Queue(
            budget=queue.budget - grant,
            seats=queue.seats - takes,
            free=queue.free - jnp.where(takes, blocks, 0),
            admitted=queue.admitted + takes,
            admit=queue.admit.at[row].set(takes),
            admit_order=queue.admit_order.at[row].set(queue.admitted),
            grant=queue.grant.at[row].add(grant),
            kv_tokens=queue.kv_tokens.at[row].max(jnp.where(takes, answer.kv_tokens, 0)),
            limited_by=limited_by,
            extra=extra,
        )
        keys = keys.at[row].set(_LAST)
        return queue, keys, _next_in_line(keys, order), goes_on

    keys = jnp.where(view.waiting & open_, view.rows.queue_order, _LAST)
    queue, *_ = lax.while_loop(
        # The smallest key is `_LAST` when nothing is left.
        lambda carry: carry[3] & (carry[1][carry[2]] != _LAST), walk,
        (queue, keys, _next_in_line(keys, order), jnp.bool_(True)),
    )
    return queue


def _next_in_line(keys: Int[Array, "P"], order: Order) -> Int[Array, ""]:
    """Of the rows whose key is not `_LAST` the first one."""
    before = order if isinstance(order, tuple) else (order,)
    left = keys != _LAST
    for key in before:
        left &= key == jnp.min(jnp.where(left, key, _LAST))
    # Without `before` one search: no row is left when the smallest key is `_LAST`.
    return jnp.argmin(jnp.where(left, keys, _LAST) if before else keys).astype(jnp.int32)


def first_in_line(view: View, order: Order = ()) -> Int[Array, ""]:
    """The waiting row that `admit_in_order` asks first; any row if nobody waits."""
    return _next_in_line(jnp.where(view.waiting, view.rows.queue_order, _LAST), order)


def start_queue(
    view: View, *, budget, seats, free, grant, kv_tokens, limited_by=LimitedBy.QUEUE_EMPTY, extra=()
) -> Queue:
    """A walk that has admitted nothing; `grant` and `kv_tokens` are those of the running rows."""
    return Queue(
        budget=jnp.int32(budget), seats=jnp.int32(seats), free=jnp.int32(free),
        admitted=jnp.int32(0), admit=jnp.zeros(view.rows.request.shape, bool),
        admit_order=jnp.zeros(view.rows.request.shape, jnp.int32), grant=grant, kv_tokens=kv_tokens,
        limited_by=jnp.asarray(limited_by, jnp.int32), extra=extra,
    )


def decide(view: View, queue: Queue, **more: Any) -> Decision:
    """The decision that the walk arrived at; `more` are further fields of `Decision`."""
    fields = dict(
        admit=queue.admit, admit_order=queue.admit_order, grant=queue.grant,
        kv_tokens=queue.kv_tokens, limited_by=queue.limited_by,
    )
    return replace(nothing(view), **(fields | more))
