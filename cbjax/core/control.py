"""An `if` that changes a state in place.

`lax.cond` copies what passes through the branch that changes nothing, tables and pool included. A
loop of at most one turn copies nothing, and costs next to nothing when it does not turn.
"""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

T = TypeVar("T")


def when(condition: Bool[Array, ""], change: Callable[[T], T], value: T) -> T:
    """`change(value)` if the condition holds, else `value`; both of the same shapes and types."""
    _, value = lax.while_loop(
        lambda carry: carry[0], lambda carry: (jnp.bool_(False), change(carry[1])),
        (condition, value),
    )
    return value
