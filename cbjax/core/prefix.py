"""The prefix cache: full KV blocks found again by the tokens that they and all before them hold.

A block's key is a 64-bit hash of every token from the start of its sequence, the same in every
process; on a hit the tokens themselves are compared, so that two contents with one key are a miss.
A registered block that nobody holds stays in the free list, where it can be found until it is
handed out: the least recently freed first, a sequence's last block before its first.
"""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

NONE = -1  # end of a chain


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """What is known of N blocks: contents, keys, hash chains, and the free list as a ring of links.

    The free list runs from entry N around to entry N: `after[N]` is the next block handed out and
    `before[N]` the last. A chain begins at `heads` with the block registered last.
    """

    content: Int[Array, "K"]  # token ids of registered blocks; block b begins at b x block size
    keys: UInt32[Array, "N 2"]
    registered: Bool[Array, "N"]
    heads: Int[Array, "H"]  # H is a power of two
    newer: Int[Array, "N"]  # neighbours in the hash chain
    older: Int[Array, "N"]
    before: Int[Array, "N+1"]  # neighbours in the free list
    after: Int[Array, "N+1"]
    # Leading blocks of each row that are registered or were hits. A row that ended keeps the
    # number, one that was aborted its negative: these it left behind.
    entered: Int[Array, "P"]
    registers_ended: str = field(metadata={"static": True})  # see Traits
    free_order: str = field(metadata={"static": True})


def empty_cache(
    rows: int, capacity: int, content: int, usable: Int[Array, ""],
    registers_ended: str = "computed", free_order: str = "unregistered_first",
) -> Cache:
    """Nothing registered; `usable` of N blocks free, handed out from block 0 on."""
    blocks = jnp.arange(capacity + 1, dtype=jnp.int32)
    last = jnp.int32(usable) - 1
    after = jnp.where(blocks == last, capacity, blocks + 1).at[capacity].set(0)
    before = jnp.where(blocks == 0, capacity, blocks - 1).at[capacity].set(last)
    return Cache(
        content=jnp.zeros(content, jnp.int32), keys=jnp.zeros((capacity, 2), jnp.uint32),
        registered=jnp.zeros(capacity, bool),
        heads=jnp.full(1 << (2 * capacity - 1).bit_length(), NONE, jnp.int32),
        newer=jnp.full(capacity, NONE, jnp.int32), older=jnp.full(capacity, NONE, jnp.int32),
        before=before, after=after, entered=jnp.zeros(rows, jnp.int32),
        registers_ended=registers_ended, free_order=free_order,
    )


def block_keys(token_ids: Int[Array, "C"], block_size: Int[Array, ""], blocks: int):
    """Keys of the first `blocks` blocks of a sequence, `[blocks, 2]`: each covers all before it.

    A sum over the tokens so far of a hash of token and position, twice with other constants: no
    block has to wait for the one before it, and the integers wrap alike everywhere.
    """
    position = jnp.arange(token_ids.shape[0], dtype=jnp.uint32)
    token = token_ids.astype(jnp.uint32)

    def mixed(seed: int):
        value = token * jnp.uint32(0x9E3779B1) + position * jnp.uint32(0x85EBCA77)
        value = value + jnp.uint32(seed)
        for factor, shift in ((0x2C1B3C6D, 15), (0x297A2D39, 12), (0x9E3779B1, 15)):
            value = (value ^ (value >> shift)) * jnp.uint32(factor)
        return jnp.cumsum(value ^ (value >> 16))

    end = jnp.clip((jnp.arange(blocks) + 1) * block_size - 1, 0, token_ids.shape[0] - 1)
    return jnp.stack([mixed(0x243F6A88)[end], mixed(0x13198A2E)[end]], axis=1)


def find(
    cache: Cache, token_ids: Int[Array, "C"], known: Int[Array, ""], block_size: Int[Array, ""],
    blocks: int, among: Bool[Array, "N"] | None = None,
) -> tuple[Int[Array, "M"], Int[Array, ""]]:
    """The longest cached prefix of a sequence: physical blocks `[M]`, and how many of them count.

    At least one token of the sequence is left to compute, so that there are logits. Of several
    blocks with one content the one registered first is found. With `among`, only those blocks.
    """
    keys = block_keys(token_ids, block_size, blocks)
    bucket = (keys[:, 0] & jnp.uint32(cache.heads.shape[0] - 1)).astype(jnp.int32)

    def along(carry):
        block, found = carry
        here = jnp.maximum(block, 0)
        same = (block != NONE) & jnp.all(cache.keys[here] == keys, axis=1)
        if among is not None:
            same &= among[here]
        return jnp.where(block == NONE, NONE, cache.older[here]), jnp.where(same, block, found)

    _, found = lax.while_loop(
        lambda carry: jnp.any(carry[0] != NONE), along,
        (cache.heads[bucket], jnp.full(blocks, NONE, jnp.int32)),
    )
    whole = (known - 1) // block_size
    hits = jnp.minimum(_leading(found != NONE), whole)
    position = jnp.arange(token_ids.shape[0])
    block = found[jnp.minimum(position // block_size, blocks - 1)]
    place = jnp.maximum(block, 0) * block_size + position % block_size
    same = cache.content[jnp.minimum(place, cache.content.shape[0] - 1)] == token_ids
    return found, jnp.minimum(hits, _leading(same) // block_size)


def _leading(true: Bool[Array, "X"]) -> Int[Array, ""]:
    """How many entries hold before the first that does not."""
    return jnp.where(jnp.all(true), true.shape[0], jnp.argmin(true)).astype(jnp.int32)


def register(
    cache: Cache, table: Int[Array, "M"], row: Int[Array, ""], token_ids: Int[Array, "C"],
    tokens: Int[Array, ""], block_size: Int[Array, ""],
) -> Cache:
    """Enter the full blocks among the first `tokens` of a row that are not entered yet."""
    first, last = cache.entered[row], tokens // block_size
    keys = block_keys(token_ids, block_size, table.shape[0])
    position = jnp.arange(token_ids.shape[0])
    inside = (position >= first * block_size) & (position < last * block_size)
    block = table[jnp.minimum(position // block_size, table.shape[0] - 1)]
    place = jnp.where(inside, block * block_size + position % block_size, cache.content.shape[0])
    cache = replace(cache, content=cache.content.at[place].set(token_ids, mode="drop"))

    def enter(carry):
        cache, index = carry
        block = table[index]
        bucket = (keys[index, 0] & jnp.uint32(cache.heads.shape[0] - 1)).astype(jnp.int32)
        head = cache.heads[bucket]
        none = cache.newer.shape[0]
        return replace(
            cache, keys=cache.keys.at[block].set(keys[index]),
            registered=cache.registered.at[block].set(True),
            heads=cache.heads.at[bucket].set(block), older=cache.older.at[block].set(head),
            newer=cache.newer.at[block].set(NONE).at[jnp.where(head == NONE, none, head)].set(
                block, mode="drop"
            ),
        ), index + 1

    cache, _ = lax.while_loop(lambda carry: carry[1] < last, enter, (cache, first))
    return replace(cache, entered=cache.entered.at[row].set(jnp.maximum(first, last)))


def forget(cache: Cache, block: Int[Array, ""]) -> Cache:
    """Take a block out of its hash chain, if it is in one: its content is about to change."""
    none, size = cache.newer.shape[0], cache.heads.shape[0]
    there = cache.registered[block]
    newer, older = cache.newer[block], cache.older[block]
    bucket = (cache.keys[block, 0] & jnp.uint32(size - 1)).astype(jnp.int32)
    return replace(
        cache, registered=cache.registered.at[block].set(False),
        heads=cache.heads.at[jnp.where(there & (newer == NONE), bucket, size)].set(
            older, mode="drop"
        ),
        older=cache.older.at[jnp.where(there & (newer != NONE), newer, none)].set(
            older, mode="drop"
        ),
        newer=cache.newer.at[jnp.where(there & (older != NONE), older, none)].set(
            newer, mode="drop"
        ),
    )


def unlink(cache: Cache, block: Int[Array, ""]) -> Cache:
    """Take a block out of the free list."""
    before, after = cache.before[block], cache.after[block]
    return replace(
        cache, after=cache.after.at[before].set(after), before=cache.before.at[after].set(before)
    )


def link(cache: Cache, block: Int[Array, ""]) -> Cache:
    """Put a block into the free list: a registered one at the end, others by `free_order`."""
    ring = cache.newer.shape[0]
    at_end = cache.registered[block] | (cache.free_order == "oldest_first")
    before = jnp.where(at_end, cache.before[ring], ring)
    after = jnp.where(at_end, ring, cache.after[ring])
    return replace(
        cache,
        before=cache.before.at[block].set(before).at[after].set(block),
        after=cache.after.at[block].set(after).at[before].set(block),
    )
