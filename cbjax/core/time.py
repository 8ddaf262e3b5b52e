"""Exact time without 64-bit numbers: whole seconds and nanoseconds, two int32.

float32 seconds lose a millisecond after a few hours, and 64-bit types are off in jax by default.
A pair is exact for 68 years, under `vmap` and inside `while_loop`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

NANOSECONDS = 1_000_000_000


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Time:
    """A moment or a duration; `0 <= nanoseconds < 10**9`, so order is that of the pair."""

    seconds: Int[Array | np.ndarray, "..."]
    nanoseconds: Int[Array | np.ndarray, "..."]


def zero(shape: tuple[int, ...] = ()) -> Time:
    """The start of the clock."""
    return Time(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32))


def never(shape: tuple[int, ...] = ()) -> Time:
    """A moment after every other."""
    return Time(
        jnp.full(shape, jnp.iinfo(jnp.int32).max, jnp.int32),
        jnp.full(shape, NANOSECONDS - 1, jnp.int32),
    )


def from_seconds(seconds: float) -> Time:
    """Round Python seconds to the nearest nanosecond (host only: needs a 64-bit float).

    The parts are numpy numbers, which a compiled function takes in without a device copy first.
    """
    whole, rest = divmod(round(seconds * NANOSECONDS), NANOSECONDS)
    return Time(np.asarray(whole, np.int32), np.asarray(rest, np.int32))


def to_seconds(time: Time) -> float:
    """Python seconds of a single moment (host only)."""
    return int(time.seconds) + int(time.nanoseconds) / NANOSECONDS


def add(a: Time, b: Time) -> Time:
    """The moment `b` after `a`."""
    # Both parts are below 10**9, so their sum stays within int32.
    nanoseconds = a.nanoseconds + b.nanoseconds
    carry = nanoseconds >= NANOSECONDS
    return Time(
        a.seconds + b.seconds + carry,
        jnp.where(carry, nanoseconds - NANOSECONDS, nanoseconds),
    )


def subtract(a: Time, b: Time) -> Time:
    """The duration from `b` to `a`; seconds are negative where `a` comes first."""
    nanoseconds = a.nanoseconds - b.nanoseconds
    borrow = nanoseconds < 0
    return Time(
        a.seconds - b.seconds - borrow,
        jnp.where(borrow, nanoseconds + NANOSECONDS, nanoseconds),
    )


def before(a: Time, b: Time):
    """Whether `a` comes strictly before `b`."""
    return (a.seconds < b.seconds) | (
        (a.seconds == b.seconds) & (a.nanoseconds < b.nanoseconds)
    )


def select(condition, a: Time, b: Time) -> Time:
    """`a` where the condition holds, else `b`."""
    return Time(
        jnp.where(condition, a.seconds, b.seconds),
        jnp.where(condition, a.nanoseconds, b.nanoseconds),
    )


def as_float(time: Time) -> Float[Array | np.ndarray, "..."]:
    """float32 seconds, for rules that need only a rough age."""
    return time.seconds.astype(jnp.float32) + time.nanoseconds.astype(jnp.float32) * 1e-9
