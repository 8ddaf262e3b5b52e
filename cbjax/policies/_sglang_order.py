"""SGLang's orders of the waiting queue that look at the prefix cache, and those that do not."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.control import when
from cbjax.core.view import View
from cbjax.policies import _sglang_tree as trees
from cbjax.policies._sglang_tree import Pool, Tree

ORDERS = {"fcfs": 0, "lof": 1, "random": 2, "lpm": 3, "dfs-weight": 4}
IN_BATCH = 32  # tokens of a prefix that is worth waiting for
LONGEST_QUEUE = 128  # more requests than these are not sorted by "lpm"

_LAST = jnp.iinfo(jnp.int32).max
_UNBOUNDED = 1 << 30


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Matched:
    """The waiting requests asked so far for the prefixes that they would find."""

    tree: Tree
    left: Bool[Array, "P"]
    found: Int[Array, "P M"]
    hits: Int[Array, "P"]
    back: Bool[Array, "P"]  # waits for another one to fill the cache for it
    fills: Bool[Array, "P"]  # others may wait for it


def sort(knobs: dict, pool: Pool, view: View, tokens, goes) -> tuple[Pool, Int[Array, "P"]]:
    """The queue's order keys, for the orders that look at the cache: the queue itself is sorted.

    Every request looks for its prefix, which counts as a use of the cache.
    """
    by_length = (knobs["order"] == ORDERS["lpm"]) & (view.num_waiting <= LONGEST_QUEUE)
    depth_first = knobs["order"] == ORDERS["dfs-weight"]
    keys = view.rows.queue_order

    def change(carry):
        _, keys = carry
        matched = _match_all(pool, view, tokens)
        prefix = jnp.where(matched.back, 0, -matched.hits)
        first = lax.cond(
            by_length, lambda: jnp.lexsort((keys, prefix, matched.back, ~view.waiting)),
            lambda: _depth_first(matched, keys, view.waiting),
        )
        # The same keys, dealt out anew.
        ordered = jnp.sort(jnp.where(view.waiting, keys, _LAST))
        dealt = keys.at[first].set(ordered)
        return matched.tree, jnp.where(view.waiting, dealt, keys)

    tree, keys = when(goes & (by_length | depth_first), change, (pool.tree, keys))
    return replace(pool, tree=tree), keys


def _match_all(pool: Pool, view: View, tokens) -> _Matched:
    ids, page = view.token_ids, view.system.block_size
    rows, columns = pool.shared.blocks.tables.shape
    long = tokens >= IN_BATCH

    def one(carry: _Matched) -> _Matched:
        row = jnp.argmin(jnp.where(carry.left, view.rows.queue_order, _LAST))
        # The whole text here; one token is left out only when a request is admitted.
        found, hits = trees.match(replace(pool, tree=carry.tree), ids[row], tokens[row], page)
        alike = jnp.all(ids[:, :IN_BATCH] == ids[row, :IN_BATCH], axis=1) & long & long[row]
        short = hits * page <= IN_BATCH
        back = short & jnp.any(carry.fills & alike)
        return _Matched(
            tree=trees.walk(carry.tree, found, hits), left=carry.left.at[row].set(False),
            found=carry.found.at[row].set(found), hits=carry.hits.at[row].set(hits),
            back=carry.back.at[row].set(back), fills=carry.fills.at[row].set(short & ~back),
        )

    nobody = jnp.zeros(rows, bool)
    start = _Matched(
        pool.tree, view.waiting, jnp.zeros((rows, columns), jnp.int32),
        jnp.zeros(rows, jnp.int32), nobody, nobody,
    )
    return lax.while_loop(lambda carry: jnp.any(carry.left), one, start)


def _depth_first(matched: _Matched, keys, waiting) -> Int[Array, "P"]:
    """Rows in order: at every node the branches in which most wait, then who waits at it.

    A request's way down is a word, one letter a node; the words are sorted by their letters from
    the last to the first. A word that ends comes after all that go on.
    """
    tree, none = matched.tree, matched.tree.node.shape[0]
    columns = matched.found.shape[1]
    on = (jnp.arange(columns) < matched.hits[:, None]) & waiting[:, None]
    path = jnp.where(on, matched.found, 0)
    ends = on & (tree.node[path] == path)
    waits = jnp.zeros(none, jnp.int32).at[jnp.where(ends, path, none)].add(1, mode="drop")
    depth = jnp.cumsum(ends, axis=1)
    place = jnp.where(ends, depth - 1, columns)
    row = jnp.arange(keys.shape[0])[:, None]

    def letters(values):
        return jnp.full(path.shape, _LAST).at[row, place].set(values[path], mode="drop")

    weight, born = letters(-waits), letters(tree.born - tree.clock)

    def letter(carry):
        first, index = carry
        turn = jnp.lexsort((born[first, index], weight[first, index]))
        return first[turn], index - 1

    first, _ = lax.while_loop(
        lambda carry: carry[1] >= 0, letter,
        (jnp.lexsort((keys, ~waiting)), jnp.max(depth) - 1),
    )
    # Who does not wait came last and has the empty word, as who waits at the root.
    return first[jnp.argsort(~waiting[first], stable=True)]


def urgency(knobs: dict, view: View, turn: Int[Array, ""]) -> Int[Array, "P"]:
    """Waiting requests with a smaller number go first; the queue decides among equals."""
    rows = view.rows
    longest = view.system.max_length
    outputs = jnp.where(knobs["order"] == ORDERS["lof"], longest - rows.max_tokens, 0)
    sign = jnp.where(knobs["schedule_low_priority_values_first"], 1, -1)
    # Priorities far beyond what is in use would not fit beside the outputs: they are alike.
    reach = lax.div(jnp.int32(_UNBOUNDED), longest + 1)
    priority = jnp.where(knobs["enable_priority_scheduling"], sign * rows.priority, 0)
    sorts = jnp.clip(priority, -reach, reach) * (longest + 1) + outputs
    first = jnp.where(knobs["order"] == ORDERS["lof"], sorts, priority)
    return jnp.where(knobs["order"] == ORDERS["random"], _shuffled(rows.request, turn), first)


def _shuffled(request: Int[Array, "P"], turn: Int[Array, ""]) -> Int[Array, "P"]:
    """A number for each request that looks random and differs in every iteration."""
    number = request.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
    number += turn.astype(jnp.uint32) * jnp.uint32(0x85EBCA77)
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
        number = (number ^ number >> shift) * jnp.uint32(factor)
    return (number >> 1).astype(jnp.int32)
