"""A histogram of gaps between tokens with integer, logarithmic bins.

A gap in nanoseconds falls into one of 64 bins per power of two: its leading bit and the six bits
behind it. A bin is at most 1/64 wide, relative to its gaps, so its middle is off by less than
0.8 %. Gaps of a second or more are counted in microseconds, which costs no precision. Everything is
integer, so the order of counting and the shape of the program cannot change a count.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.control import when
from cbjax.core.time import Time

_BITS = 6  # behind the leading one
_PER_OCTAVE = 1 << _BITS
_OCTAVES = 32 - _BITS
_HALF = _OCTAVES * _PER_OCTAVE  # bins of either unit
BINS = 2 * _HALF
MOST_RELATIVE_ERROR = 0.5 / _PER_OCTAVE


def bin_of(gap: Time) -> Int[Array, "..."]:
    """The bin of each gap; gaps of 2,147 s or more share the last one."""
    short = gap.seconds == 0
    micro = jnp.minimum(gap.seconds, 2146) * 1_000_000 + gap.nanoseconds // 1000
    value = jnp.where(short, gap.nanoseconds, micro)
    # Below 2**_BITS every value is a bin of its own.
    shift = jnp.maximum(31 - _BITS - lax.clz(value), 0)
    place = jnp.right_shift(value, shift) + shift * _PER_OCTAVE
    return place + jnp.where(short, 0, _HALF)


def count_alike(
    counts: Int[Array, "B"], gaps: Time, mask: Bool[Array, "P"]
) -> Int[Array, "B"]:
    """Count the gaps in `mask`, which usually are all the same."""
    some = jnp.argmax(mask)
    one = Time(gaps.seconds[some], gaps.nanoseconds[some])
    differs = (gaps.seconds != one.seconds) | (gaps.nanoseconds != one.nanoseconds)
    apart = jnp.any(mask & differs)
    counts = when(
        apart, lambda counts: counts.at[jnp.where(mask, bin_of(gaps), BINS)].add(1, mode="drop"),
        counts,
    )
    return counts.at[bin_of(one)].add(jnp.where(apart, 0, jnp.sum(mask)))


def middles_s() -> np.ndarray:
    """The middle of each bin in seconds, `[BINS]`."""
    place = np.arange(_HALF)
    shift = np.maximum(place // _PER_OCTAVE - 1, 0)
    low = (place - shift * _PER_OCTAVE).astype(np.float64) * 2.0**shift
    middle = low + (2.0**shift - 1) / 2
    return np.concatenate([middle * 1e-9, middle * 1e-6])


def percentiles_s(counts: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Percentiles of the counted gaps, linearly interpolated between order statistics.

    Args:
        counts: how many gaps fell into each bin.
        points: percentages.

    Returns:
        Seconds, each within `MOST_RELATIVE_ERROR` of the exact one; nan without gaps.
    """
    total = int(counts.sum())
    if not total:
        return np.full(len(points), np.nan)
    order = np.argsort(middles_s(), kind="stable")
    middle, ends = middles_s()[order], np.cumsum(counts[order])
    rank = np.asarray(points) / 100 * (total - 1)
    low, high = np.floor(rank).astype(np.int64), np.ceil(rank).astype(np.int64)
    at_low, at_high = (
        middle[np.searchsorted(ends, place, side="right")] for place in (low, high)
    )
    return at_low + (rank - low) * (at_high - at_low)
