"""Shared blocks kept in two kinds: free ones, and ones that only wait to be found.

For policies that do not count a block as free while its content can still be found, and that keep
one block of each content: `merge` instead of `sharing.enter`, `discard` instead of `sharing.leave`,
and `purge` when memory runs short. The free list has the findable blocks behind all others.
"""

from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from cbjax.core import prefix, sharing
from cbjax.core.blocks import Blocks
from cbjax.core.sharing import Shared


def findable(blocks: Blocks) -> Int[Array, ""]:
    """Blocks that nobody holds and that a request may still find; `free` counts them too."""
    return jnp.sum(blocks.cache.registered & (blocks.refs == 0))


def purge(shared: Shared) -> Shared:
    """Forget what nobody holds; of the free blocks none is found any more."""
    blocks = shared.blocks
    ring = blocks.refs.shape[0]

    def forget(carry):
        cache, block = carry
        return prefix.forget(cache, block), cache.before[block]

    cache, _ = lax.while_loop(
        # Behind the last findable block, from the end, come the others.
        lambda carry: (carry[1] != ring) & carry[0].registered[jnp.minimum(carry[1], ring - 1)],
        forget, (blocks.cache, blocks.cache.before[ring]),
    )
    return replace(shared, blocks=replace(blocks, cache=cache))


def discard(shared: Shared, row) -> Shared:
    """Take all blocks from a row; what nobody else holds is forgotten."""
    return sharing.give_back(shared, row, lambda index, freed: freed)


def merge(shared: Shared, token_ids: Int[Array, "P C"], row, count, block_size) -> Shared:
    """Register the next `count` full blocks of a row, one block for each content.

    A block whose content is registered already is given up for the one that has it.

    Args:
        shared: the pool.
        token_ids: known tokens.
        row: holds the blocks; none of the next ones is registered.
        count: how many of them; all computed.
        block_size: positions of a block.
    """
    blocks, ids = shared.blocks, token_ids[row]
    last = blocks.cache.entered[row] + count
    # What the row has entered is found as well, so what follows it is the news.
    found, hits = prefix.find(
        blocks.cache, ids, last * block_size + 1, block_size, blocks.tables.shape[1]
    )

    def give_up(carry):
        blocks, index = carry
        own, other = blocks.tables[row, index], found[index]
        waits = blocks.refs[other] == 0
        cache = lax.cond(
            waits, lambda cache: prefix.unlink(cache, other), lambda cache: cache, blocks.cache
        )
        return replace(
            blocks, cache=prefix.link(cache, own), free=blocks.free + 1 - waits,
            refs=blocks.refs.at[other].add(1).at[own].set(0),
            tables=blocks.tables.at[row, index].set(other),
        ), index + 1

    blocks, entered = lax.while_loop(
        lambda carry: carry[1] < hits, give_up, (blocks, blocks.cache.entered[row])
    )
    cache = replace(blocks.cache, entered=blocks.cache.entered.at[row].set(entered))
    cache = prefix.register(
        cache, blocks.tables[row], row, ids, last * block_size, block_size
    )
    return replace(shared, blocks=replace(blocks, cache=cache))
