"""The online softmax, one step of it, as the Pallas kernels take it.

Weights are powers of two and the running maximum is rounded up to an integer, so that rescaling
multiplies by an exact power of two: only the order of the steps matters, and that is fixed.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.ragged_paged_attention._spans import LOWEST


class Carry(NamedTuple):
    """What the positions seen so far amount to; R rows."""

    top: Float[Array, "R 1"]  # an integer, at least the greatest score
    total: Float[Array, "R 1"]
    acc: Float[Array, "R D"]


def powers(products: Array, scale: float, soft_cap: float | None) -> Array:
    """Scores as exponents of two, from products of queries and keys."""
    if soft_cap is None:
        return products * (scale * math.log2(math.e))
    return jnp.tanh(products * (scale / soft_cap)) * (soft_cap * math.log2(math.e))


def weigh(top: Array, scores: Array, visible: Array) -> tuple[Array, Array, Array]:
    """The new maximum, the factor that it puts on what came before, and the weights `[R, P]`."""
    scores = jnp.where(visible, scores, LOWEST)
    highest = jnp.ceil(jnp.max(scores, axis=1, keepdims=True))
    new_top = jnp.maximum(top, jnp.maximum(highest, LOWEST / 2))
    return new_top, jnp.exp2(top - new_top), jnp.exp2(scores - new_top)
