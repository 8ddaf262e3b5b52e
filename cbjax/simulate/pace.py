"""From work to a duration: the cost model, padding to a rung, compilation, host time.

All of it is one small program of K lanes, compiled apart from whatever surrounds it: the compiler
may contract a product and a sum differently in another place, and a leap must round as the plain
loop does.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cbjax.core import time
from cbjax.core.ladder import Ladder
from cbjax.core.time import NANOSECONDS, Time
from cbjax.simulate.work import Cost, Work

_MOST_S = 2_000_000_000.0  # fits the seconds of a Time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pace:
    """What an iteration's time is made of; G rungs."""

    cost: Cost
    host: Time  # scheduling and delivery, before every iteration
    compile_s: Float[Array, ""]  # a rung's first use; 0 = compiled before the start
    padded: Bool[Array, ""]  # an iteration costs as much as its rung
    rung_tokens: Int[Array, "G"]
    rung_sequences: Int[Array, "G"]


def pace_of(
    cost: Cost, rungs: Ladder, *, host_s: float = 0.0, compile_s: float = 0.0,
    padded: bool = False,
) -> Pace:
    """A pace from plain numbers.

    Args:
        cost: how long the computation takes.
        rungs: the padded shapes.
        host_s: seconds of host work before every iteration, not overlapped with it.
        compile_s: seconds of a rung's first use; 0 counts no compilation.
        padded: count an iteration as its rung's tokens.

    Raises:
        ValueError: a negative time.
    """
    for name, value in (("host_s", host_s), ("compile_s", compile_s)):
        if not 0 <= value < _MOST_S:
            raise ValueError(f"{name} = {value!r}: give seconds, 0 or more")
    sizes = np.array([(rung.tokens, rung.sequences) for rung in rungs.rungs], np.int32)
    # numpy numbers: a compiled function takes them in without a device copy first.
    numbers: tuple[Any, ...] = (np.float32(compile_s), np.bool_(padded), *sizes.T)
    return Pace(cost, time.from_seconds(host_s), *numbers)


def rung_of(pace: Pace, tokens: Int[Array, "K"], sequences: Int[Array, "K"]) -> Int[Array, "K"]:
    """Index of the first rung that holds each iteration; G if none does."""
    index = jnp.arange(pace.rung_tokens.shape[0], dtype=jnp.int32)
    holds = (pace.rung_tokens >= tokens[:, None]) & (pace.rung_sequences >= sequences[:, None])
    return jnp.min(jnp.where(holds, index, index.shape[0]), axis=1)


def durations(
    pace: Pace, work: Work, compiled: Bool[Array, "G"], shaped: bool
) -> tuple[Time, Int[Array, "K"]]:
    """How long each of K iterations takes, host time apart.

    Args:
        pace: what counts.
        work: the iterations.
        compiled: rungs that were used before; without `shaped` not read.
        shaped: static; whether rungs matter.

    Returns:
        Durations rounded to the nanosecond, and the rung of each (0 where they do not matter).
    """
    lanes = work.tokens.shape[0]
    nothing = jnp.zeros(lanes, jnp.int32)

    def once(carry):
        work = carry[1]
        rung, stall = nothing, 0.0
        if shaped:
            rung = rung_of(pace, work.tokens, work.sequences)
            padded = pace.rung_tokens[jnp.minimum(rung, pace.rung_tokens.shape[0] - 1)]
            tokens = jnp.where(pace.padded, jnp.maximum(padded, work.tokens), work.tokens)
            work = replace(work, tokens=tokens)
            stall = jnp.where(compiled[rung], 0.0, pace.compile_s)
        seconds = jnp.clip(pace.cost.seconds(work) + stall, 0.0, _MOST_S)
        return jnp.bool_(False), carry[1], _rounded(jnp.broadcast_to(seconds, lanes)), rung

    # A loop of one turn, whose start the compiler cannot foresee: a computation of its own.
    *_, spent, rung = lax.while_loop(
        lambda carry: carry[0], once, (work.tokens[0] >= 0, work, Time(nothing, nothing), nothing)
    )
    return spent, rung


def _rounded(seconds: Float[Array, "K"]) -> Time:
    """float32 seconds to the nearest nanosecond."""
    whole = jnp.floor(seconds)
    rest = jnp.round((seconds - whole) * jnp.float32(NANOSECONDS)).astype(jnp.int32)
    carry = rest >= NANOSECONDS
    return Time(
        whole.astype(jnp.int32) + carry, jnp.where(carry, rest - NANOSECONDS, rest)
    )
