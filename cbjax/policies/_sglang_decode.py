"""SGLang's decode step: one token of everyone, after retraction if memory is short."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.rows import NO_ROW
from cbjax.core.view import View
from cbjax.policies import _sglang_ratio as ratios
from cbjax.policies._sglang_ratio import Ratio
from cbjax.policies._sglang_state import Carried


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decode:
    """A decode step of the running batch."""

    stays: Bool[Array, "P"]  # rows that decode
    running: Int[Array, "S"]
    preempt: Bool[Array, "P"]
    order: Int[Array, "P"]
    chunked: Int[Array, ""]
    ratio: Ratio


def decode(knobs: dict, carried: Carried, view: View, tokens, crossing) -> Decode:
    """All of the running batch, or what is left of it after retraction."""
    nobody = jnp.zeros(crossing.shape, bool)

    def everyone() -> Decode:
        ratio = ratios.decay(carried.ratio, knobs["new_token_ratio_decay_steps"])
        decodes = jnp.any(carried.member)
        ratio = jax.tree.map(lambda new, old: jnp.where(decodes, new, old), ratio, carried.ratio)
        return Decode(
            carried.member, view.running, nobody, jnp.zeros_like(tokens), carried.chunked, ratio
        )

    return lax.cond(
        jnp.sum(crossing) <= view.free_blocks, everyone,
        lambda: _retract(knobs, carried, view, tokens, crossing),
    )


def _retract(knobs: dict, carried: Carried, view: View, tokens, crossing) -> Decode:
    """The members with fewest outputs leave, longest prompt first, until the others fit.

    At least one leaves and one stays; if that one still does not fit, the half computed request
    leaves too.
    """
    rows, seats = view.rows, view.running.shape[0]
    inside = view.seated & carried.member[view.running]
    outputs = (tokens - rows.prompt)[view.running]
    first = jnp.lexsort((rows.prompt[view.running], -outputs, ~inside))
    line, inside = view.running[first], inside[first]
    live, index = jnp.sum(inside), jnp.arange(seats)
    need = jnp.cumsum(jnp.where(inside, crossing[line], 0))
    freed = jnp.cumsum(jnp.where(inside, view.freed[line], 0))
    fits = need <= view.free_blocks + freed[-1] - freed
    stay = jnp.maximum(jnp.sum(fits & (index < live - 1)), 1)
    halved = (carried.chunked != NO_ROW) & ~fits[stay - 1]
    stays = index < stay

    def at_rows(mask, values):
        place = jnp.where(mask, line, tokens.shape[0])
        return jnp.zeros(tokens.shape, values.dtype).at[place].set(values, mode="drop")

    victim = inside & ~stays
    chunked = jnp.arange(tokens.shape[0]) == carried.chunked
    order = jnp.where(chunked, live - stay, at_rows(victim, live - 1 - index))
    kept = jnp.where(halved, NO_ROW, carried.chunked)
    running = jnp.where(stays, line, jnp.where(index == stay, kept, NO_ROW))
    made = jnp.sum(jnp.where(stays, outputs[first], 0)) + knobs["retract_decode_steps"] * stay
    most = jnp.sum(jnp.where(stays, rows.max_tokens[line], 0)) + 1
    return Decode(
        stays=at_rows(stays, stays), running=running.astype(jnp.int32),
        preempt=at_rows(victim, victim) | (halved & chunked), order=order.astype(jnp.int32),
        chunked=kept, ratio=ratios.share(carried.ratio, made, most),
    )
