"""SGLang's new_token_ratio in whole numbers: exact, and the same on every machine.

The ratio is the share of their remaining output that the running requests are expected to need. It
is counted in parts of 2**30. A product with it that lies within the rounding of a whole number
counts as that number.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

PARTS = 1 << 30
_LIMB = 10  # bits; three of them hold the ratio, and a product with one of them fits 32 bits
_MOST = (1 << 22) - 1  # tokens of an estimate


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ratio:
    """The ratio and where it starts and ends."""

    now: Int[Array, ""]
    rest: Int[Array, ""]  # of its decay, in parts of a step
    initial: Int[Array, ""]
    least: Int[Array, ""]


def start(initial: float, least_factor: float) -> Ratio:
    """The ratio of an idle system, from the shares that the user gave."""
    now, least = (jnp.int32(round(share * PARTS)) for share in (initial, initial * least_factor))
    return Ratio(now=now, rest=jnp.int32(0), initial=now, least=least)


def decay(ratio: Ratio, steps: Int[Array, ""], turns: Int[Array, ""] | int = 1) -> Ratio:
    """Some decode steps further on the way from the initial value to the least."""
    span = ratio.initial - ratio.least
    each = span // steps
    # No more than lead to the end, so that the product fits 32 bits.
    turns = jnp.minimum(turns, ratio.now // jnp.maximum(each, 1) + 1)
    rest = ratio.rest + span % steps * turns
    now = ratio.now - each * turns - rest // steps
    ends = now <= ratio.least
    return replace(
        ratio, now=jnp.where(ends, ratio.least, now), rest=jnp.where(ends, 0, rest % steps)
    )


def share(ratio: Ratio, part: Int[Array, ""], whole: Int[Array, ""]) -> Ratio:
    """The ratio set to `part / whole`, at most 1: a long division, one bit a turn."""

    def bit(_, carry):
        now, left = carry
        left = 2 * left
        goes = left >= whole
        return 2 * now + goes, left - jnp.where(goes, whole, 0)

    now, _ = lax.fori_loop(0, 30, bit, (jnp.int32(0), jnp.minimum(part, whole)))
    now = jnp.where(part >= whole, PARTS, now)
    return replace(ratio, now=now, rest=jnp.int32(0))


def reset(ratio: Ratio) -> Ratio:
    """Back to the initial value."""
    return replace(ratio, now=ratio.initial, rest=jnp.int32(0))


def at_least(ratio: Ratio, tokens: Int[Array, "..."], wanted: Int[Array, "..."]):
    """Whether the ratio's share of the tokens is at least as many as wanted."""
    product, _ = _multiply(tokens, ratio.now + 2)
    return product >= wanted


def rounded_up(ratio: Ratio, tokens: Int[Array, "..."]) -> Int[Array, "..."]:
    """The ratio's share of the tokens, a fraction of a token counted as one."""
    product, exact = _multiply(tokens, jnp.maximum(ratio.now - 2, 0))
    return product + ~exact


def _multiply(tokens, parts):
    """`tokens * parts / PARTS` rounded down, and whether that is exact; limb by limb."""
    mask = jnp.uint32((1 << _LIMB) - 1)
    tokens, parts = jnp.minimum(tokens, _MOST).astype(jnp.uint32), parts.astype(jnp.uint32)
    low = tokens * (parts & mask)
    middle = tokens * (parts >> _LIMB & mask) + (low >> _LIMB)
    high = tokens * (parts >> 2 * _LIMB) + (middle >> _LIMB)
    exact = ((low | middle | high) & mask) == 0
    return (high >> _LIMB).astype(jnp.int32), exact
