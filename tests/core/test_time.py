"""Time as a pair: exact, in order, and the same as arithmetic on whole nanoseconds."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cbjax.core import time

MOMENTS = st.integers(min_value=0, max_value=10**9 * 86_400 * 3)


def pair(nanoseconds: int) -> time.Time:
    whole, rest = divmod(nanoseconds, time.NANOSECONDS)
    return time.Time(np.asarray(whole, np.int32), np.asarray(rest, np.int32))


def total(moment: time.Time) -> int:
    return int(moment.seconds) * time.NANOSECONDS + int(moment.nanoseconds)


@given(MOMENTS, MOMENTS)
def test_arithmetic_is_that_of_whole_nanoseconds(a, b):
    assert total(time.add(pair(a), pair(b))) == a + b
    assert total(time.subtract(pair(a), pair(b))) == a - b
    assert bool(time.before(pair(a), pair(b))) == (a < b)


@given(st.floats(min_value=0, max_value=86_400, allow_nan=False))
def test_seconds_are_rounded_once(seconds):
    assert abs(time.to_seconds(time.from_seconds(seconds)) - seconds) <= 0.5e-9 + seconds * 1e-15


def test_a_day_of_small_steps_loses_nothing():
    """float32 seconds would be milliseconds off after a few hours."""
    step = time.from_seconds(0.004_321_007)
    many = jax.lax.fori_loop(0, 200_000, lambda _, now: time.add(now, step), time.zero())
    assert total(many) == 200_000 * 4_321_007


def test_never_is_after_everything():
    assert bool(time.before(pair(10**9 * 86_400 * 365), time.never()))
