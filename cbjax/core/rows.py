"""Rows: one line per request in the seats and the waiting window. A row never moves.

Every order is an explicit list or key, never the row's index: the index is only where the
request's numbers happen to be kept.
"""

from dataclasses import dataclass
from enum import IntEnum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from cbjax.core import time
from cbjax.core.time import Time

NO_REQUEST = -1
NO_ROW = -1
NO_PREDICTION = -1
NO_GROUP = -1


class Status(IntEnum):
    """The one state a row is in."""

    FREE = 0
    WAITING = 1  # never ran
    PREEMPTED = 2  # ran, lost its blocks, waits to be computed again
    SWAPPED = 3  # ran, its blocks lie in the host pool
    RUNNING = 4  # holds a seat


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """The numbers of P = S + W requests, in integers."""

    request: Int[Array, "P"]  # the caller's handle; NO_REQUEST on a free row
    group: Int[Array, "P"]  # requests sampled from one prompt share a group; NO_GROUP
    status: Int[Array, "P"]  # Status
    prompt: Int[Array, "P"]  # prompt tokens: the boundary that survives preemption
    known: Int[Array, "P"]  # prompt and output tokens so far
    computed: Int[Array, "P"]  # tokens whose KV is written, or is being written
    peak: Int[Array, "P"]  # greatest `computed` so far: below it, work is recomputation
    in_flight: Int[Array, "P"]  # tokens scheduled and not yet committed
    max_tokens: Int[Array, "P"]  # most output tokens
    predicted: Int[Array, "P"]  # predicted output tokens; NO_PREDICTION
    held: Int[Array, "P"]  # KV blocks in the block table
    swapped: Int[Array, "P"]  # KV blocks in the host pool
    queue_order: Int[Array, "P"]  # smallest first among those that wait
    priority: Int[Array, "P"]  # as the caller gave it; direction is the policy's
    preemptions: Int[Array, "P"]
    arrival: Time  # [P]
    queued: Time  # [P] entry into the queue, renewed by preemption
    deadline: Time  # [P] `never` where there is none


def empty_rows(count: int) -> Rows:
    """`count` free rows."""

    def full(value: int) -> Array:
        # A buffer of its own for every field: donated buffers must not be shared.
        return jnp.full(count, int(value), jnp.int32)

    return Rows(
        request=full(NO_REQUEST), group=full(NO_GROUP), status=full(Status.FREE),
        prompt=full(0), known=full(0), computed=full(0), peak=full(0), in_flight=full(0),
        max_tokens=full(0), predicted=full(NO_PREDICTION), held=full(0), swapped=full(0),
        queue_order=full(0), priority=full(0), preemptions=full(0),
        arrival=time.zero((count,)), queued=time.zero((count,)), deadline=time.never((count,)),
    )


def is_waiting(status: Int[Array, "P"]):
    """Rows that wait for a seat, whether or not they ran before."""
    return (status == Status.WAITING) | (status == Status.PREEMPTED) | (status == Status.SWAPPED)
