"""The iteration log: one row of integers per iteration, in a buffer that the host empties."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from cbjax.core.plan import Plan
from cbjax.core.time import Time
from cbjax.simulate.leap import Lanes

COLUMNS = (
    "start_s", "start_ns", "duration_s", "duration_ns", "compiled", "scheduled_tokens",
    "prefill_tokens", "extra_tokens", "sequences", "running", "waiting", "backlog", "free_blocks",
    "live_tokens", "preempted", "admitted", "finished", "limited_by",
)


def empty_log(capacity: int, lanes: int) -> Int[Array, "C F"]:
    """Room for `capacity` iterations, and for the lanes of a leap that are not taken."""
    return jnp.zeros((capacity + lanes, len(COLUMNS)), jnp.int32)


def write_one(
    log: Int[Array, "C F"], place: Int[Array, ""], plan: Plan, start: Time, spent: Time, compiled,
    finished: Int[Array, ""],
) -> Int[Array, "C F"]:
    """The iteration of a plan; `start` is when its computation began."""
    row = jnp.stack([
        jnp.asarray(value).astype(jnp.int32) for value in (
            start.seconds, start.nanoseconds, spent.seconds, spent.nanoseconds, compiled,
            plan.scheduled_tokens, plan.prefill_tokens, plan.extra_tokens, plan.num_sequences,
            plan.num_running, plan.num_waiting, plan.backlog, plan.free_blocks, plan.live_tokens,
            jnp.sum(plan.preempted), jnp.sum(plan.admitted), finished, plan.limited_by,
        )
    ])
    return lax.dynamic_update_slice(log, row[None], (place, 0))


def write_leap(
    log: Int[Array, "C F"], place: Int[Array, ""], ahead: Lanes, start: Time, num_blocks, waiting,
    limited_by,
) -> Int[Array, "C F"]:
    """All lanes; those that were not taken are written over next."""
    zero = jnp.zeros_like(ahead.running)
    rows = jnp.stack([
        start.seconds, start.nanoseconds, ahead.spent.seconds, ahead.spent.nanoseconds, zero,
        ahead.running, zero, ahead.work.tokens - ahead.running, ahead.running, ahead.running,
        zero + waiting, zero, num_blocks - ahead.used, ahead.context, zero, zero, ahead.ends,
        zero + limited_by,
    ], axis=1)
    return lax.dynamic_update_slice(log, rows, (place, 0))
