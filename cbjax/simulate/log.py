"""The iteration log: one column of integers per iteration, in a buffer that the host empties.

A turn that computes nothing but moves requests on or off their seats has a column too.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.plan import Plan
from cbjax.core.time import Time
from cbjax.simulate.leap import Lanes

COLUMNS = (
    "start_s", "start_ns", "duration_s", "duration_ns", "compiled", "scheduled_tokens",
    "prefill_tokens", "extra_tokens", "sequences", "running", "waiting", "backlog", "free_blocks",
    "live_tokens", "preempted", "admitted", "finished", "limited_by", "computed",
)


def empty_log(capacity: int, lanes: int) -> Int[Array, "F C"]:
    """Room for `capacity` iterations, and for the lanes of a leap that are not taken."""
    return jnp.zeros((len(COLUMNS), capacity + lanes), jnp.int32)


def write_one(
    log: Int[Array, "F C"], place: Int[Array, ""], plan: Plan, start: Time, spent: Time, compiled,
    finished: Int[Array, ""], computed: Bool[Array, ""],
) -> Int[Array, "F C"]:
    """The iteration of a plan; `start` is when its computation began, if anything was computed."""
    column = jnp.stack([
        jnp.asarray(value).astype(jnp.int32) for value in (
            start.seconds, start.nanoseconds, spent.seconds, spent.nanoseconds, compiled,
            plan.scheduled_tokens, plan.prefill_tokens, plan.extra_tokens, plan.num_sequences,
            plan.num_running, plan.num_waiting, plan.backlog, plan.free_blocks, plan.live_tokens,
            jnp.sum(plan.preempted), jnp.sum(plan.admitted), finished, plan.limited_by,
            computed,
        )
    ])
    return lax.dynamic_update_slice(log, column[:, None], (0, place))


def write_leap(
    log: Int[Array, "F C"], place: Int[Array, ""], ahead: Lanes, start: Time, num_blocks, waiting,
    backlog, limited_by,
) -> Int[Array, "F C"]:
    """All lanes; those that were not taken are written over next."""
    zero = jnp.zeros_like(ahead.running)
    columns = jnp.stack([
        start.seconds, start.nanoseconds, ahead.spent.seconds, ahead.spent.nanoseconds, zero,
        ahead.running, zero, ahead.work.tokens - ahead.running, ahead.running, ahead.running,
        zero + waiting, zero + backlog, num_blocks - ahead.used, ahead.context, zero, zero,
        ahead.ends, zero + limited_by, zero + 1,
    ])
    return lax.dynamic_update_slice(log, columns, (0, place))
