"""How many KV slots a request reserves when nobody knows how long its answer will be.

The three ways that the PagedAttention paper compares, from hindsight to none.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from cbjax.core.limits import System

RESERVATIONS = ("oracle", "pow2", "max")


def reservation_number(name: str) -> int:
    """A reservation as a number, which a compiled program takes as a value.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in RESERVATIONS:
        raise ValueError(f"reservation = {name!r}: choose one of {list(RESERVATIONS)}")
    return RESERVATIONS.index(name)


def reserved_slots(
    reservation: Int[Array, ""] | int, prompt: Int[Array, "*n"], output: Int[Array, "*n"],
    system: System,
) -> Int[Array, "*n"]:
    """KV slots of a request from its first iteration to its last.

    Args:
        reservation: from `reservation_number`. oracle: prompt and `output`; pow2: `output` rounded
            up to a power of two; max: the longest sequence.
        prompt: tokens.
        output: most tokens of the answer; its true length where answers are as long as asked.
        system: no reservation exceeds its longest sequence or its pool.

    Source: PagedAttention (SOSP 2023), section 6.1: Orca (Oracle), Orca (Pow2), Orca (Max).
    """
    reservation, output = jnp.int32(reservation), jnp.int32(output)
    power = jnp.left_shift(1, 32 - lax.clz(jnp.maximum(output, 1) - 1))
    slots = jnp.select(
        [reservation == RESERVATIONS.index("oracle"), reservation == RESERVATIONS.index("pow2")],
        [prompt + output, prompt + power],
        system.max_length,
    )
    most = jnp.minimum(system.max_length, system.num_blocks * system.block_size)
    return jnp.minimum(slots, most)
