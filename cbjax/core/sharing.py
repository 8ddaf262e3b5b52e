"""Blocks under prefix sharing: the pool's verbs, one row at a time.

A policy that shares prefixes takes these steps itself while it decides, on the pool that `View`
shows it, because what one row takes or registers changes what the next one finds; the mechanism
adopts the pool that the decision returns (`Shared`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import prefix
from cbjax.core.blocks import Blocks
from cbjax.core.rows import NO_ROW


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shared:
    """What a decision made of the pool; P rows."""

    blocks: Blocks
    held: Int[Array, "P"]  # blocks of each row
    cached: Int[Array, "P"]  # tokens that admitted rows found computed


def untouched(blocks: Blocks, held: Int[Array, "P"]) -> Shared:
    """The pool as a decision finds it."""
    return Shared(blocks, held, jnp.zeros_like(held))


def hits(shared: Shared, token_ids: Int[Array, "P C"], row, known, block_size):
    """Blocks that a waiting row would find: physical ids `[M]`, how many, how many are free."""
    blocks = shared.blocks
    found, count = prefix.find(
        blocks.cache, token_ids[row], known, block_size, blocks.tables.shape[1]
    )
    counts = jnp.arange(found.shape[0]) < count
    return found, count, jnp.sum(counts & (blocks.refs[jnp.maximum(found, 0)] == 0))


def attach(shared: Shared, row, found: Int[Array, "M"], count, block_size) -> Shared:
    """Give a row without blocks the first `count` of `found`."""

    def take(carry):
        blocks, index = carry
        block = found[index]
        free = blocks.refs[block] == 0
        cache = lax.cond(
            free, lambda cache: prefix.unlink(cache, block), lambda cache: cache, blocks.cache
        )
        return replace(
            blocks, cache=cache, refs=blocks.refs.at[block].add(1), free=blocks.free - free,
            tables=blocks.tables.at[row, index].set(block),
        ), index + 1

    blocks, _ = lax.while_loop(
        lambda carry: carry[1] < count, take, (shared.blocks, jnp.int32(0))
    )
    cache = replace(blocks.cache, entered=blocks.cache.entered.at[row].set(count))
    return replace(
        shared, blocks=replace(blocks, cache=cache), held=shared.held.at[row].set(count),
        cached=shared.cached.at[row].set(count * block_size),
    )


def grow(shared: Shared, row, count) -> Shared:
    """Append `count` new blocks to a row; the pool must have them."""

    def take(carry):
        blocks, left = carry
        block = blocks.cache.after[blocks.refs.shape[0]]
        cache = prefix.forget(prefix.unlink(blocks.cache, block), block)
        column = shared.held[row] + count - left
        return replace(
            blocks, cache=cache, refs=blocks.refs.at[block].set(1),
            tables=blocks.tables.at[row, column].set(block),
        ), left - 1

    blocks, _ = lax.while_loop(
        lambda carry: carry[1] > 0, take, (shared.blocks, jnp.int32(count))
    )
    blocks = replace(blocks, free=blocks.free - count)
    return replace(shared, blocks=blocks, held=shared.held.at[row].add(count))


def enter(shared: Shared, token_ids: Int[Array, "P C"], row, tokens, block_size) -> Shared:
    """Register the full blocks among the first `tokens` of a row."""
    blocks = shared.blocks
    cache = prefix.register(
        blocks.cache, blocks.tables[row], row, token_ids[row], tokens, block_size
    )
    return replace(shared, blocks=replace(blocks, cache=cache))


def enter_computed(
    shared: Shared, token_ids: Int[Array, "P C"], running: Int[Array, "S"],
    tokens: Int[Array, "P"], block_size,
) -> Shared:
    """Register the full blocks among the first `tokens` of each running row, in run order."""
    row = jnp.where(running == NO_ROW, 0, running)
    news = tokens[row] // block_size > shared.blocks.cache.entered[row]

    def one(carry):
        shared, left = carry
        seat = jnp.argmax(left)
        shared = enter(shared, token_ids, running[seat], tokens[running[seat]], block_size)
        return shared, left.at[seat].set(False)

    shared, _ = lax.while_loop(
        lambda carry: jnp.any(carry[1]), one, (shared, (running != NO_ROW) & news)
    )
    return shared


def leave(shared: Shared, row, kept) -> Shared:
    """Take all blocks from a row, the last first; only its first `kept` may stay registered.

    What is not computed yet must not be found: its KV would be read before it was written.
    """
    return give_back(shared, row, lambda index, freed: index >= kept)


def give_back(shared: Shared, row, forgets: Callable[..., Bool[Array, ""]]) -> Shared:
    """Take all blocks from a row, the last first.

    Args:
        shared: the pool.
        row: loses its blocks.
        forgets: `(index, freed)`: whether the row's block of that index is not to be found again;
            `freed` if nobody else holds it.
    """

    def one(carry):
        blocks, index = carry
        block = blocks.tables[row, index]
        refs = blocks.refs.at[block].add(-1)
        freed = refs[block] == 0
        cache = lax.cond(
            forgets(index, freed), lambda cache: prefix.forget(cache, block),
            lambda cache: cache, blocks.cache,
        )
        cache = lax.cond(
            freed, lambda cache: prefix.link(cache, block), lambda cache: cache, cache
        )
        return replace(blocks, refs=refs, cache=cache, free=blocks.free + freed), index - 1

    blocks, _ = lax.while_loop(
        lambda carry: carry[1] >= 0, one, (shared.blocks, shared.held[row] - 1)
    )
    cache = replace(blocks.cache, entered=blocks.cache.entered.at[row].set(0))
    return replace(
        shared, blocks=replace(blocks, cache=cache), held=shared.held.at[row].set(0)
    )


def forget(shared: Shared, listed: Int[Array, "L"], first, last) -> Shared:
    """Free blocks, entries `first` to `last` of a list, are not found again: next handed out."""

    def one(carry):
        cache, index = carry
        block = listed[index]
        cache = prefix.forget(prefix.unlink(cache, block), block)
        return prefix.link(cache, block), index + 1

    cache, _ = lax.while_loop(
        lambda carry: carry[1] < last, one, (shared.blocks.cache, jnp.int32(first))
    )
    return replace(shared, blocks=replace(shared.blocks, cache=cache))


def release(
    blocks: Blocks, mask: Bool[Array, "P"], held: Int[Array, "P"], running: Int[Array, "S"],
    finish: Callable[[Shared, Int[Array, ""]], Shared], aborted: bool = False,
) -> Blocks:
    """Give back all blocks of the running rows in `mask`, in run order.

    What they registered can still be found. `finish` registers more of a row before; then
    `Cache.entered` tells what it left behind, and whether it was `aborted`.
    """
    all_blocks = jnp.int32(blocks.tables.shape[1])

    def end(carry):
        shared, left = carry
        seat = jnp.argmax(left)
        row, left = running[seat], left.at[seat].set(False)
        shared = finish(shared, row)
        left_behind = shared.blocks.cache.entered[row] * (-1 if aborted else 1)
        shared = leave(shared, row, all_blocks)
        cache = shared.blocks.cache
        cache = replace(cache, entered=cache.entered.at[row].set(left_behind))
        return replace(shared, blocks=replace(shared.blocks, cache=cache)), left

    shared, _ = lax.while_loop(
        lambda carry: jnp.any(carry[1]), end,
        (untouched(blocks, held), (running != NO_ROW) & mask[running]),
    )
    return shared.blocks
