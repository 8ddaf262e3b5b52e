"""SGLang's radix tree over the pool's blocks: which belong together, and which go first.

A block that can be found lies in a node of the tree: a run of blocks that are evicted together,
the least recently passed leaf first. Nodes split where sequences part. A node bears the id of its
last block, which no split changes; what is known of a node stands at that id.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import prefix, sharing
from cbjax.core.control import when
from cbjax.core.limits import blocks_for
from cbjax.core.prefix import NONE
from cbjax.core.sharing import Shared


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tree:
    """Nodes over N blocks, and where P rows lie."""

    node: Int[Array, "N"]  # node of each block; NONE = it cannot be found
    above: Int[Array, "N"]  # per node: the node above it; NONE = the root
    children: Int[Array, "N"]
    used: Int[Array, "N"]  # when it was last passed
    born: Int[Array, "N"]  # when the branch that begins with it grew
    clock: Int[Array, ""]  # counts on beyond 32 bits: only differences are read
    kept: Int[Array, "P"]  # leading blocks of each row that lie in the tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pool:
    """The pool while a decision is made, and the tree over it."""

    shared: Shared
    tree: Tree

    @property
    def free(self) -> Int[Array, ""]:
        """Blocks that nobody holds, those of the tree included."""
        return self.shared.blocks.free


def empty_tree(rows: int, blocks: int) -> Tree:
    """Nothing can be found."""
    none, zero = jnp.full(blocks, NONE, jnp.int32), jnp.zeros(blocks, jnp.int32)
    return Tree(
        node=none, above=none, children=zero, used=zero, born=zero, clock=jnp.int32(0),
        kept=jnp.zeros(rows, jnp.int32),
    )


def match(pool: Pool, text: Int[Array, "C"], tokens, block_size):
    """The longest prefix of the first `tokens` of a text: blocks `[M]`, and how many of them."""
    blocks = pool.shared.blocks
    return prefix.find(
        blocks.cache, text, tokens + 1, block_size, blocks.tables.shape[1],
        among=pool.tree.node != NONE,
    )


def idle(pool: Pool, found: Int[Array, "M"], hits) -> Int[Array, ""]:
    """How many of the first `hits` blocks nobody holds."""
    counts = jnp.arange(found.shape[0]) < hits
    return jnp.sum(counts & (pool.shared.blocks.refs[jnp.maximum(found, 0)] == 0))


def walk(tree: Tree, path: Int[Array, "M"], hits) -> Tree:
    """Pass the first `hits` blocks of a path: the last node on it is split where the path ends."""
    none = tree.node.shape[0]
    on = jnp.arange(path.shape[0]) < hits
    path = jnp.where(on, path, 0)
    ends = on & (tree.node[path] == path)
    passed = jnp.sum(ends)
    used = tree.used.at[jnp.where(ends, path, none)].set(
        tree.clock + jnp.cumsum(ends), mode="drop"
    )
    last = path[jnp.maximum(hits - 1, 0)]
    rest = tree.node[last]
    splits = (hits > 0) & (rest != last)
    # The rest keeps its id; the part above it is a new node, passed after it.
    below, new = jnp.where(splits, rest, none), jnp.where(splits, last, none)

    def put(values, at, value):
        return values.at[at].set(value, mode="drop")

    moved = jnp.where(on & splits & (tree.node[path] == rest), path, none)
    return replace(
        tree, node=put(tree.node, moved, last),
        above=put(put(tree.above, new, tree.above[rest]), below, last),
        children=put(tree.children, new, 1), born=put(tree.born, new, tree.born[rest]),
        used=put(put(used, below, tree.clock + passed + 1), new, tree.clock + passed + 2),
        clock=tree.clock + passed + 2,
    )


def hang(tree: Tree, path: Int[Array, "M"], had, total) -> Tree:
    """A new leaf below the first `had` blocks of a path, of the blocks up to `total`."""
    none, index = tree.node.shape[0], jnp.arange(path.shape[0])
    grows = total > had
    last = path[jnp.maximum(total - 1, 0)]
    above = jnp.where(had > 0, path[jnp.maximum(had - 1, 0)], NONE)
    node = jnp.where(grows, last, none)
    clock = tree.clock + 1

    def put(values, value):
        return values.at[node].set(value, mode="drop")

    return replace(
        tree,
        node=tree.node.at[
            jnp.where((index >= had) & (index < total), path, none)
        ].set(last, mode="drop"),
        above=put(tree.above, above),
        children=put(tree.children, 0).at[
            jnp.where(grows & (above != NONE), above, none)
        ].add(1, mode="drop"),
        used=put(tree.used, clock), born=put(tree.born, clock), clock=clock,
    )


def attach(pool: Pool, row, found: Int[Array, "M"], hits, block_size) -> Pool:
    """Give a row without blocks the first `hits` of `found`."""
    return replace(
        pool, shared=sharing.attach(pool.shared, row, found, hits, block_size),
        tree=replace(pool.tree, kept=pool.tree.kept.at[row].set(hits)),
    )


def release(pool: Pool, row) -> Pool:
    """Take all blocks from a row; what lies in the tree stays there."""
    return replace(
        pool, shared=sharing.leave(pool.shared, row, pool.tree.kept[row]),
        tree=replace(pool.tree, kept=pool.tree.kept.at[row].set(0)),
    )


def release_all(pool: Pool, mask: Bool[Array, "P"]) -> Pool:
    """Take all blocks from the rows in `mask`."""

    def one(carry):
        pool, left = carry
        row = jnp.argmax(left)
        return release(pool, row), left.at[row].set(False)

    return lax.while_loop(lambda carry: jnp.any(carry[1]), one, (pool, mask))[0]


def grow_to(pool: Pool, mask: Bool[Array, "P"], tokens: Int[Array, "P"], block_size) -> Pool:
    """Give the rows in `mask` the blocks that they lack for so many tokens."""

    def lacks(pool: Pool):
        return jnp.where(mask, blocks_for(tokens, block_size) - pool.shared.held, 0)

    def one(carry):
        pool, left = carry
        row = jnp.argmax(left)
        grown = sharing.grow(pool.shared, row, left[row])
        return replace(pool, shared=grown), left.at[row].set(0)

    return lax.while_loop(lambda carry: jnp.any(carry[1] > 0), one, (pool, lacks(pool)))[0]


def evict_for(pool: Pool, tokens, block_size) -> Pool:
    """Make blocks for so many tokens: if they are not at hand, evict as many, not the shortfall."""
    tree, blocks = pool.tree, pool.shared.blocks
    in_tree = jnp.sum((blocks.refs == 0) & (tree.node != NONE))
    short = (blocks.free - in_tree) * block_size < tokens
    ids = jnp.arange(tree.node.shape[0])

    def leaves(pool: Pool):
        tree = pool.tree
        leaf = (tree.node == ids) & (tree.children == 0)
        return leaf & (pool.shared.blocks.refs == 0)

    def one(carry):
        pool, left, leaf = carry
        age = (pool.tree.clock - pool.tree.used).astype(jnp.uint32)
        oldest = jnp.argmax(jnp.where(leaf, age + 1, 0))
        members = pool.tree.node == oldest
        pool = _drop(pool, oldest, members)
        return pool, left - jnp.sum(members) * block_size, leaves(pool)

    return lax.while_loop(
        lambda carry: (carry[1] > 0) & jnp.any(carry[2]), one,
        (pool, jnp.where(short, tokens, 0), leaves(pool)),
    )[0]


def _drop(pool: Pool, node, members: Bool[Array, "N"]) -> Pool:
    """Take a leaf out of the tree; its blocks are the next to be handed out."""
    none, longest = members.shape[0], pool.shared.blocks.tables.shape[1]
    (listed,) = jnp.nonzero(members, size=min(none, longest), fill_value=0)
    above = pool.tree.above[node]

    tree = replace(
        pool.tree, node=jnp.where(members, NONE, pool.tree.node),
        children=pool.tree.children.at[jnp.where(above != NONE, above, none)].add(
            -1, mode="drop"
        ),
    )
    return Pool(sharing.forget(pool.shared, listed, 0, jnp.sum(members)), tree)


def keep(
    pool: Pool, row, text: Int[Array, "C"], total, block_size, gone: Bool[Array, ""],
    ends: Bool[Array, ""],
) -> Pool:
    """Put the first `total` blocks of a row into the tree.

    What the tree has already is given back, and the row holds the tree's instead. A row that is
    `gone` holds nothing any more; its blocks are in the free list. A request that does not end
    here looks for its prefix once more.
    """
    found, had = match(pool, text, total * block_size, block_size)
    tree = walk(pool.tree, found, had)

    def swap(carry):
        blocks, index = carry
        cache, refs = blocks.cache, blocks.refs
        mine, theirs = blocks.tables[row, index], found[index]
        cache = when(gone, lambda cache: prefix.unlink(cache, mine), cache)
        takes = ~gone & (refs[theirs] == 0)
        cache = when(takes, lambda cache: prefix.unlink(cache, theirs), cache)
        cache = prefix.link(prefix.forget(cache, mine), mine)
        return replace(
            blocks, cache=cache, refs=refs.at[mine].add(gone - 1).at[theirs].add(1 - gone),
            free=blocks.free + ~gone - takes, tables=blocks.tables.at[row, index].set(theirs),
        ), index + 1

    blocks, _ = lax.while_loop(
        lambda carry: carry[1] < had, swap, (pool.shared.blocks, tree.kept[row])
    )
    path = blocks.tables[row]
    cache = replace(blocks.cache, entered=blocks.cache.entered.at[row].set(had))
    # The blocks of a row that is gone were registered when it ended.
    cache = when(
        ~gone & (total > had),
        lambda cache: prefix.register(cache, path, row, text, total * block_size, block_size),
        cache,
    )
    tree = walk(hang(tree, path, had, total), path, jnp.where(ends, 0, total))
    return Pool(
        replace(pool.shared, blocks=replace(blocks, cache=cache)),
        replace(tree, kept=tree.kept.at[row].set(total)),
    )
