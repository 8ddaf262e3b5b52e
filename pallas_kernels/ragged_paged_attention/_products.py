"""Matrix products that lose nothing of float32 where the other side is bfloat16.

A float32 number is the sum of three bfloat16 numbers, so three products on a matrix unit give what
a product in float32 would, which such units do slowly or not at all. A bfloat16 side on the left
takes one.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def product(dot: Callable[[Array, Array], Any], a: Array, b: Array) -> Array:
    """`dot(a, b)` with sums in float32.

    Args:
        dot: the back end's product of two arrays of one dtype.
        a: float32 or bfloat16.
        b: float32 or bfloat16; what one reads from the cache.
    """
    if a.dtype == b.dtype:
        return dot(a, b)
    if b.dtype == jnp.float32:
        return dot(a.astype(jnp.float32), b)
    total: Any = 0.0
    for _ in range(3):
        # By bits: a compiler may leave out a conversion to bfloat16 and back.
        bits = jax.lax.bitcast_convert_type(a, jnp.uint32) >> 16 << 16
        part = jax.lax.bitcast_convert_type(bits, jnp.float32)
        total = total + dot(part.astype(jnp.bfloat16), b)
        a = a - part
    return total
