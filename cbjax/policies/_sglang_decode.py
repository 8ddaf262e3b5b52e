"""SGLang's decode step: one token of everyone, after retraction if memory is short."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.rows import NO_ROW
from cbjax.core.view import View
from cbjax.policies import _sglang_ratio as ratios
from cbjax.policies import _sglang_tree as trees
from cbjax.policies._sglang_ratio import Ratio
from cbjax.policies._sglang_state import Carried
from cbjax.policies._sglang_tree import Pool


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


@dataclass(frozen=True)
class _Line:
    """The running batch in the order in which it is retracted, the last one first."""

    rows: Int[Array, "S"]
    inside: Bool[Array, "S"]
    outputs: Int[Array, "S"]
    need: Int[Array, "S"]  # blocks that the rows up to each one need
    live: Int[Array, ""]


def decode(
    knobs: dict, carried: Carried, view: View, tokens, crossing, pool: Pool | None, turn
) -> tuple[Decode, Pool | None]:
    """All of the running batch, or what is left of it after retraction.

    Args:
        knobs: of the policy.
        carried: what the policy remembers.
        view: the table.
        tokens: known tokens of each row.
        crossing: rows that need a block.
        pool: the pool, if prefixes are shared.
        turn: whether a decode step is due; if not, nothing is retracted.

    Returns:
        The step, and the pool after its retractions.
    """
    nobody = jnp.zeros(crossing.shape, bool)
    crossing &= turn
    enough = jnp.sum(crossing) <= view.free_blocks

    def everyone() -> Decode:
        ratio = ratios.decay(carried.ratio, knobs["new_token_ratio_decay_steps"])
        decodes = jnp.any(carried.member)
        ratio = jax.tree.map(lambda new, old: jnp.where(decodes, new, old), ratio, carried.ratio)
        return Decode(
            carried.member, view.running, nobody, jnp.zeros_like(tokens), carried.chunked, ratio
        )

    def some() -> Decode:
        line = _in_line(carried, view, tokens, crossing)
        freed = jnp.cumsum(jnp.where(line.inside, view.freed[line.rows], 0))
        fits = line.need <= view.free_blocks + freed[-1] - freed
        stay = jnp.maximum(jnp.sum(fits & (jnp.arange(fits.shape[0]) < line.live - 1)), 1)
        halved = (carried.chunked != NO_ROW) & ~fits[stay - 1]
        return _left(knobs, carried, view, line, stay, halved)

    if pool is None:
        return lax.cond(enough, everyone, some), None
    page = view.system.block_size
    pool = trees.evict_for(pool, jnp.sum(crossing) * page, page)
    line = _in_line(carried, view, tokens, crossing)
    stay, pool = _retract_in_turn(line, pool, ~enough, knobs["retract_decode_steps"], page)
    halved = (carried.chunked != NO_ROW) & ~enough & (line.need[stay - 1] > pool.free)
    pool = trees.release_all(pool, halved & (jnp.arange(tokens.shape[0]) == carried.chunked))
    step = lax.cond(
        enough, everyone, lambda: _left(knobs, carried, view, line, stay, halved)
    )
    return step, pool


def _in_line(carried: Carried, view: View, tokens, crossing) -> _Line:
    """Fewest outputs last, longest prompt last among equals."""
    rows = view.rows
    inside = view.seated & carried.member[view.running]
    outputs = (tokens - rows.prompt)[view.running]
    first = jnp.lexsort((rows.prompt[view.running], -outputs, ~inside))
    line, inside = view.running[first], inside[first]
    return _Line(
        line, inside, outputs[first], jnp.cumsum(jnp.where(inside, crossing[line], 0)),
        jnp.sum(inside),
    )


def _retract_in_turn(line: _Line, pool: Pool, goes, steps, page):
    """One after the other, as what each gives back depends on who shares it.

    After each, memory for the retracted steps is evicted, then memory for those that stay.
    """

    def one(carry):
        pool, stay, _ = carry
        stay = stay - 1
        pool = trees.evict_for(trees.release(pool, line.rows[stay]), stay * steps, page)
        need = line.need[jnp.maximum(stay - 1, 0)]
        pool = trees.evict_for(pool, need * page, page)
        return pool, stay, need > pool.free

    pool, stay, _ = lax.while_loop(
        lambda carry: carry[2] & (carry[1] > 1), one, (pool, line.live, goes)
    )
    return jnp.maximum(stay, 1), pool


def _left(knobs: dict, carried: Carried, view: View, line: _Line, stay, halved) -> Decode:
    """The first `stay` of the line decode, the others leave.

    At least one leaves and one stays; if that one still does not fit, the half computed request
    leaves too (`halved`).
    """
    rows, index = view.rows, jnp.arange(line.rows.shape[0])
    stays = index < stay
    every = rows.held.shape[0]

    def at_rows(mask, values):
        place = jnp.where(mask, line.rows, every)
        return jnp.zeros(every, values.dtype).at[place].set(values, mode="drop")

    victim = line.inside & ~stays
    chunked = jnp.arange(every) == carried.chunked
    order = jnp.where(chunked, line.live - stay, at_rows(victim, line.live - 1 - index))
    kept = jnp.where(halved, NO_ROW, carried.chunked)
    running = jnp.where(stays, line.rows, jnp.where(index == stay, kept, NO_ROW))
    made = jnp.sum(jnp.where(stays, line.outputs, 0)) + knobs["retract_decode_steps"] * stay
    most = jnp.sum(jnp.where(stays, rows.max_tokens[line.rows], 0)) + 1
    return Decode(
        stays=at_rows(stays, stays), running=running.astype(jnp.int32),
        preempt=at_rows(victim, victim) | (halved & chunked), order=order.astype(jnp.int32),
        chunked=kept, ratio=ratios.share(carried.ratio, made, most),
    )
