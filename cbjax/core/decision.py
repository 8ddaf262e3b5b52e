"""What a policy answers: who runs, how many tokens, which KV, who makes room, why it stopped."""

from dataclasses import dataclass
from enum import IntEnum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.reasons import LimitedBy, Refusal
from cbjax.core.sharing import Shared
from cbjax.core.time import Time
from cbjax.core.view import View


class Requeue(IntEnum):
    """Where a preempted request waits."""

    FRONT = 0  # before all that wait; of several, the last one preempted comes first
    # Behind all that wait in rows, ahead of the backlog; several in run order, or in
    # `preempt_order` if there is one.
    END = 1
    KEPT = 2  # at its old place in the queue
    SWAP_OUT = 3  # at the front, its KV moved to the host pool instead of dropped
    SWAP_OUT_END = 4  # the same behind all that wait


def swaps_out(requeue: Int[Array, "P"]) -> Bool[Array, "P"]:
    """Places of rows whose KV moves to the host pool."""
    return (requeue == Requeue.SWAP_OUT) | (requeue == Requeue.SWAP_OUT_END)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decision:
    """One iteration's decision over P rows; `nothing(view)` is the neutral element.

    The mechanism trusts it: grants of admitted and running rows must fit `Limits.tokens`, KV must
    fit the free blocks after preemption. The debug mode checks both.
    """

    admit: Bool[Array, "P"]  # waiting rows that get a seat
    admit_order: Int[Array, "P"] | None  # 0, 1, ... in order of admission; None = queue order
    grant: Int[Array, "P"]  # tokens to compute in this iteration
    kv_tokens: Int[Array, "P"]  # positions the row must own after this; never shrinks
    # Running rows that lose seat and blocks; beside `shared` also rows that found a prefix and a
    # seat in this decision and do not keep them.
    preempt: Bool[Array, "P"]
    # 0, 1, ... in order of preemption; None = last running first.
    preempt_order: Int[Array, "P"] | None
    requeue: Int[Array, "P"]  # Requeue of the preempted rows
    swap_in: Bool[Array, "P"]  # admitted rows whose KV comes back from the host pool
    refuse: Int[Array, "P"]  # Refusal of waiting rows that are turned away
    running: Int[Array, "S"] | None  # new run order of the rows that keep their seat, or None
    # The same with the admitted rows in their places: then `admit_order` is not read. Or None.
    run_order: Int[Array, "S"] | None
    queue_order: Int[Array, "P"] | None  # new queue keys of the waiting rows, or None
    # What became of the pool; from a policy that shares prefixes, and only from such.
    shared: Shared | None
    evict: Int[Array, ""]  # cached blocks to evict; 0 without prefix sharing
    extra_tokens: Int[Array, ""]  # padding computed on purpose, as padded static batching does
    wake: Time  # latest moment of the next call when nothing can run
    limited_by: Int[Array, ""]  # LimitedBy


def nothing(view: View) -> Decision:
    """The decision that changes nothing."""
    rows = view.rows.request.shape[0]
    zeros = jnp.zeros(rows, jnp.int32)
    false = jnp.zeros(rows, bool)
    return Decision(
        admit=false, admit_order=None, grant=zeros, kv_tokens=zeros, preempt=false,
        preempt_order=None, requeue=jnp.full(rows, int(Requeue.FRONT), jnp.int32), swap_in=false,
        refuse=jnp.full(rows, int(Refusal.NONE), jnp.int32), running=None,
        run_order=None, queue_order=None,
        shared=None, evict=jnp.int32(0), extra_tokens=jnp.int32(0), wake=time.never(),
        limited_by=jnp.int32(LimitedBy.QUEUE_EMPTY),
    )
