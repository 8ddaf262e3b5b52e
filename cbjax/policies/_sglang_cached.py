"""SGLang's prefix cache from one iteration to the next: results enter the tree, batches take KV.

What a batch computed enters the tree when its results are processed, in the order of the batch:
whole prompts, then outputs when a request ends. The prefix of the half computed request enters
when the next batch is formed. The overlap loop processes results one iteration late.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import sharing
from cbjax.core.rows import NO_ROW, Status
from cbjax.core.view import View
from cbjax.policies import _sglang_tree as trees
from cbjax.policies._sglang_tree import Pool, Tree

_NOT_IN_IT = jnp.iinfo(jnp.int32).max
# After all results: requests that were aborted since, then the half computed one.
_ABORTED, _HALVED = _NOT_IN_IT - 2, _NOT_IN_IT - 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """A batch whose results are to come."""

    place: Int[Array, "P"]  # order of its rows
    due: Int[Array, "P"]  # tokens that its results bring into the tree if the row goes on


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cached:
    """What is remembered of the prefix cache between iterations."""

    tree: Tree
    batches: tuple[Batch, ...]  # the oldest first
    ran: Bool[Array, "P"]  # rows that had a seat after the last decision


def start(rows: int, blocks: int, lag: int) -> Cached:
    """An empty cache."""
    nothing = Batch(jnp.full(rows, _NOT_IN_IT), jnp.zeros(rows, jnp.int32))
    return Cached(
        trees.empty_tree(rows, blocks), (nothing,) * (1 + lag), jnp.zeros(rows, bool)
    )


def take_in(cached: Cached, chunked: Int[Array, ""], view: View) -> tuple[Pool, View]:
    """The oldest batch's results and the half computed request's prefix enter the tree.

    What an aborted request computed enters after the results, its own among them.
    """
    rows, page = view.rows, view.system.block_size
    row = jnp.arange(rows.held.shape[0])
    batch, runs = cached.batches[0], rows.status == Status.RUNNING
    entered, gone = view.blocks.cache.entered, cached.ran & ~runs
    halved, aborted = runs & (row == chunked), gone & (entered < 0)
    due = jnp.where(halved, rows.computed, batch.due)
    place = jnp.select(
        [
            halved, runs & (due > 0), gone & (entered > 0),
            aborted & (due > 0) & (batch.place < _NOT_IN_IT), aborted,
        ],
        [_HALVED, batch.place, batch.place, batch.place, _ABORTED], _NOT_IN_IT,
    )

    def one(carry):
        pool, place = carry
        row = jnp.argmin(place)
        later = aborted[row] & (place[row] < _ABORTED)
        ends = gone[row] & ~later
        text = jnp.where(gone[row], _left_behind(pool, row, view), view.token_ids[row])
        total = jnp.where(ends, jnp.abs(entered[row]), due[row] // page)
        pool = trees.keep(pool, row, text, total, page, gone[row], ends)
        return pool, place.at[row].set(jnp.where(later, _ABORTED, _NOT_IN_IT))

    pool, _ = lax.while_loop(
        lambda carry: jnp.any(carry[1] < _NOT_IN_IT), one,
        (Pool(sharing.untouched(view.blocks, rows.held), cached.tree), place),
    )
    return pool, replace(view, free_blocks=pool.free)


def _left_behind(pool: Pool, row, view: View) -> Int[Array, "C"]:
    """The text of a row that ended, from its blocks: the row may have a new owner."""
    position, blocks = jnp.arange(view.token_ids.shape[1]), pool.shared.blocks
    page, table = view.system.block_size, blocks.tables[row]
    block = table[jnp.minimum(position // page, table.shape[0] - 1)]
    content = blocks.cache.content
    return content[jnp.clip(block * page + position % page, 0, content.shape[0] - 1)]


def launch(
    pool: Pool, view: View, grant, prefills: Bool[Array, "P"], decodes: Bool[Array, "P"]
) -> Pool:
    """The batch takes its KV, prefills first; what is not at hand is evicted."""
    page = view.system.block_size
    tokens = view.rows.computed + pool.shared.cached + grant
    extend = jnp.sum(jnp.where(prefills, grant, 0))
    # With pages the original does not look what its last ones have left.
    need = extend + jnp.where(page == 1, 0, jnp.sum(prefills) * page)
    pool = trees.grow_to(trees.evict_for(pool, need, page), prefills, tokens, page)
    pool = trees.evict_for(pool, jnp.sum(decodes) * page, page)
    return trees.grow_to(pool, decodes, tokens, page)


@dataclass(frozen=True)
class Formed:
    """The batch of a decision: P rows."""

    grant: Int[Array, "P"]
    prefills: Bool[Array, "P"]
    decodes: Bool[Array, "P"]
    admit_order: Int[Array, "P"]
    running: Int[Array, "S"]
    first: Int[Array, ""]  # row that was half computed before, the first of the batch
    chunked: Int[Array, ""]  # row that is half computed after it


def remember(cached: Cached, pool: Pool, view: View, formed: Formed, runs) -> Cached:
    """Keep the batch for the time when its results are there; `runs` are the rows with a seat."""
    rows, seats = runs.shape[0], formed.running.shape[0]
    row = jnp.arange(rows)
    seat = jnp.zeros(rows, jnp.int32).at[
        jnp.where(formed.running != NO_ROW, formed.running, rows)
    ].set(jnp.arange(seats), mode="drop")
    place = jnp.select(
        [formed.decodes, formed.prefills & (row != formed.first), formed.prefills],
        [rows + 1 + seat, 1 + formed.admit_order, jnp.zeros_like(seat)], _NOT_IN_IT,
    )
    tokens = view.rows.computed + pool.shared.cached + formed.grant
    due = jnp.where(formed.prefills & (row != formed.chunked), tokens, 0)
    batch = Batch(place.astype(jnp.int32), due.astype(jnp.int32))
    return Cached(pool.tree, (*cached.batches[1:], batch), runs)
