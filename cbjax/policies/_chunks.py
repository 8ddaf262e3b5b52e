"""How prompts share what is left of an iteration's tokens, in units of a chunk."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from cbjax.core import rules


def first_fit(want: Int[Array, "S"], capacity: Int[Array, ""]) -> Int[Array, "S"]:
    """All or nothing in order: whoever fits into what the earlier ones left takes it.

    Args:
        want: what each would take.
        capacity: what there is.

    Returns:
        What each takes: `want` or 0.
    """

    def take(carry):
        takes, left, index = carry
        takes, left = takes.at[index].set(True), left - want[index]
        return takes, left, jnp.argmax(fits(takes, left))

    def fits(takes, left):
        return ~takes & (want > 0) & (want <= left)

    # The front is a prefix sum; turns are taken only for those behind the first that does not fit.
    front = jnp.cumsum(want) <= capacity
    left = capacity - jnp.sum(jnp.where(front, want, 0))
    takes, _, _ = lax.while_loop(
        lambda carry: fits(carry[0], carry[1])[carry[2]], take,
        (front, left, jnp.argmax(fits(front, left))),
    )
    return jnp.where(takes, want, 0)


def first_come(
    want: Int[Array, "S"], capacity: Int[Array, ""], unit: Int[Array, ""]
) -> Int[Array, "S"]:
    """In order; a share that must be cut is rounded down to whole units.

    What the rounding leaves goes to later ones, if it is all they want: not head-of-line blocking.
    """
    before = rules.exclusive_sum(want)
    first = jnp.argmax(before + want > capacity)
    cut = jnp.maximum(capacity - before[first], 0) // unit * unit
    return first_fit(want.at[first].min(cut), capacity)


def equal_progress(
    want: Int[Array, "S"], capacity: Int[Array, ""], unit: Int[Array, ""]
) -> Int[Array, "S"]:
    """A unit for each in turn until nothing more fits; the last unit of each may be short."""

    def halve(carry):
        low, high = carry
        middle = (low + high) // 2
        fits = jnp.sum(jnp.minimum(want, middle * unit)) <= capacity
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    # The most rounds that everyone has in full, then the few in which some go without.
    rounds, _ = lax.while_loop(
        lambda carry: carry[1] - carry[0] > 1, halve,
        (jnp.zeros_like(unit), jnp.max(want) // unit + 2),
    )

    def another(carry):
        shares, _ = carry
        more = first_fit(jnp.minimum(want - shares, unit), capacity - jnp.sum(shares))
        return shares + more, jnp.any(more > 0)

    shares, _ = lax.while_loop(
        lambda carry: carry[1], another, (jnp.minimum(want, rounds * unit), jnp.bool_(True))
    )
    return shares
