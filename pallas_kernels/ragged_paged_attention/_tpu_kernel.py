"""The body of the TPU kernel: one walk over the decodes, one over the prefill tiles.

A walk takes its tiles from a list, and every tile its live pages, a few per step. Pages are copied
from HBM while the step before is computed, across the border from one tile to the next too; queries
travel with a tile's first pages, results are sent off while the next tile is computed.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import storage
from pallas_kernels.ragged_paged_attention import _products, _softmax
from pallas_kernels.ragged_paged_attention._spans import LOWEST


@dataclass(frozen=True)
class Fixed:
    """What is known while the kernel is traced."""

    pages: int  # per step
    scale: float
    causal: bool
    window: int | None
    soft_cap: float | None


class Batch(NamedTuple):
    """Scalars of the batch, in SMEM."""

    tables: Any  # [S, M]
    contexts: Any  # [S]
    starts: Any  # [S+1]
    layer: Any  # [1]


class Memory(NamedTuple):
    """Arrays in HBM, page buffers in VMEM, and the semaphores of all copies.

    A cache of one byte per number has scales, which travel with its pages.
    """

    q: Any  # [T, K, G, D] HBM
    keys: Any  # [L, N, K, B, D] HBM
    values: Any
    scales: Any  # (of keys, of values), [L, N, K', B'] HBM, or ()
    out: Any  # [T, K, G, D] HBM
    key_pages: Any  # [2, K, pages, B, D] VMEM
    value_pages: Any
    scale_pages: Any  # (of keys, of values), [2, pages, K', B'] VMEM, or ()
    page_copies: Any  # [2, 2] semaphores: slot, keys or values
    row_copies: Any  # [2] semaphores: queries, results


class Scratch(NamedTuple):
    """VMEM of one walk, for tiles of Q queries: R = Q * G rows."""

    queries: Any  # [Q, K, G, D]
    results: Any  # [Q, K, G, D]
    rows: Any  # [K, R, D]
    top: Any  # [K, R, 1]
    total: Any  # [K, R, 1]
    acc: Any  # [K, R, D]


class Item(NamedTuple):
    """One tile."""

    owner: jax.Array
    token: jax.Array  # of its first query
    live: jax.Array  # queries
    position: jax.Array  # of its first query
    begin: jax.Array  # positions begin..end-1 are seen by some query
    end: jax.Array


def copy_rows(
    source: Any, target: Any, source_at: Any, target_at: Any, count: Any, most: int,
    semaphore: Any, act: str,
) -> None:
    """Start, or wait for, copies that together move `count` rows, at most `most`.

    The size of a copy is static: a whole tile goes in one, what is left of a sequence row by row.
    """

    def some(first: Any, size: int) -> None:
        copy = pltpu.make_async_copy(
            source.at[pl.ds(source_at + first, size)], target.at[pl.ds(target_at + first, size)],
            semaphore,
        )
        getattr(copy, act)()

    if most <= min(source.shape[0], target.shape[0]) and most > 1:
        pl.when(count == most)(lambda: some(0, most))
        rest = jnp.where(count == most, 0, count)
    else:  # a batch of fewer tokens than a tile has
        rest = count
    lax.fori_loop(0, rest, lambda row, _: some(row, 1), None)


def walk(fixed: Fixed, batch: Batch, memory: Memory, scratch: Scratch, tiles: Any) -> None:
    """Compute the tiles of one list; `tiles` holds refs owner, first and a count."""
    owners, firsts, count = tiles
    size, _, group, _ = scratch.queries.shape
    _, num_kv_heads, pages, block_size, head_dim = memory.key_pages.shape
    span = pages * block_size
    layer = batch.layer[0]

    def item(i: Any) -> Item:
        owner, first = owners[i], firsts[i]
        start = batch.starts[owner]
        queries = batch.starts[owner + 1] - start
        live = jnp.minimum(queries - first, size)
        position = batch.contexts[owner] - queries + first
        begin = jnp.int32(0)
        if fixed.window is not None:
            begin = jnp.maximum(position - fixed.window + 1, 0)
        end = position + live if fixed.causal else batch.contexts[owner]
        return Item(owner, start + first, live, position, begin, end)

    def page_copies(at: Item, step: Any, slot: Any, act: str) -> None:
        lowest = jnp.maximum(at.begin // block_size - step * pages, 0)
        highest = jnp.minimum(pl.cdiv(at.end, block_size) - step * pages, pages)

        def one(page: Any, nothing: Any) -> Any:
            block = batch.tables[at.owner, step * pages + page]
            for kind, (cache, buffer) in enumerate(
                ((memory.keys, memory.key_pages), (memory.values, memory.value_pages))
            ):
                copy = pltpu.make_async_copy(
                    cache.at[layer, block], buffer.at[slot, :, page],
                    memory.page_copies.at[slot, kind],
                )
                getattr(copy, act)()
            for kind, (cache, buffer) in enumerate(
                zip(memory.scales, memory.scale_pages, strict=True)
            ):
                copy = pltpu.make_async_copy(
                    cache.at[layer, block], buffer.at[slot, page], memory.page_copies.at[slot, kind]
                )
                getattr(copy, act)()
            return nothing

        lax.fori_loop(lowest, highest, one, 0)

    def query_copies(at: Item, act: str) -> None:
        copy_rows(
            memory.q, scratch.queries, at.token, 0, at.live, size, memory.row_copies.at[0], act
        )

    def result_copies(at: Item, act: str) -> None:
        copy_rows(
            scratch.results, memory.out, 0, at.token, at.live, size, memory.row_copies.at[1], act
        )

    def fetch_first(at: Item, slot: Any) -> None:
        query_copies(at, "start")
        page_copies(at, at.begin // span, slot, "start")

    def for_heads(body: Any) -> None:
        lax.fori_loop(0, num_kv_heads, lambda head, _: body(head), None)

    def compute_step(at: Item, step: Any, slot: Any) -> None:
        low, high = at.begin - step * span, at.end - step * span

        def clear():  # what a released request left in dead places, a NaN even, must weigh nothing
            shape = (num_kv_heads, pages, block_size, head_dim)
            place = lax.broadcasted_iota(jnp.int32, shape, 1) * block_size
            place += lax.broadcasted_iota(jnp.int32, shape, 2)
            pages_now = memory.value_pages[slot]
            dead = (place < low) | (place >= high)
            memory.value_pages[slot] = jnp.where(dead, jnp.zeros_like(pages_now), pages_now)

        if not memory.scales:  # others are cleared once they are wide
            pl.when((low > 0) | (high < span))(clear)

        def numbers(buffer: Any, h: Any) -> Any:
            if not memory.scales:
                return buffer[slot, h].reshape(span, head_dim)
            # Exact: no number of one byte has more digits than bfloat16 has.
            wide = storage.from_bytes(buffer[slot, h]).reshape(span, head_dim)
            place = lax.broadcasted_iota(jnp.int32, wide.shape, 0)
            return jnp.where((place < low) | (place >= high), 0.0, wide).astype(jnp.bfloat16)

        def scaled(x: Any, kind: int, h: Any) -> Any:
            """Columns of `x` times the scales of their positions, if there are such."""
            if not memory.scales:
                return x
            return x * scale_row(memory.scale_pages[kind][slot], h, block_size, low, high)

        def head(h: Any) -> None:
            keys, values = numbers(memory.key_pages, h), numbers(memory.value_pages, h)
            products = scaled(_product(scratch.rows[h], keys, 1), 0, h)
            scores = _softmax.powers(products, fixed.scale, fixed.soft_cap)
            place = lax.broadcasted_iota(jnp.int32, scores.shape, 1) + step * span
            query = at.position + lax.broadcasted_iota(jnp.int32, scores.shape, 0) // group
            visible = place <= query if fixed.causal else place < at.end
            if fixed.window is not None:
                visible &= place > query - fixed.window
            top, factor, weights = _softmax.weigh(scratch.top[h], scores, visible)
            scratch.top[h] = top
            scratch.total[h] = scratch.total[h] * factor + jnp.sum(weights, axis=1, keepdims=True)
            weights = scaled(weights, 1, h).astype(scratch.rows.dtype)
            scratch.acc[h] = scratch.acc[h] * factor + _product(weights, values, 0)

        for_heads(head)

    def begin_item(at: Item) -> None:
        query_copies(at, "wait")

        def head(h: Any) -> None:
            scratch.rows[h] = scratch.queries[:, h].reshape(size * group, head_dim)
            scratch.top[h] = jnp.full_like(scratch.top[h], LOWEST)
            scratch.total[h] = jnp.zeros_like(scratch.total[h])
            scratch.acc[h] = jnp.zeros_like(scratch.acc[h])

        for_heads(head)

    def end_item(at: Item) -> None:
        def head(h: Any) -> None:
            total = scratch.total[h]
            result = scratch.acc[h] / jnp.where(total == 0.0, 1.0, total)
            result = result.astype(scratch.results.dtype)
            scratch.results[:, h] = result.reshape(size, group, head_dim)

        for_heads(head)
        result_copies(at, "start")

    def one_item(i: Any, slot: Any) -> Any:
        at = item(i)
        first, last = at.begin // span, (at.end - 1) // span
        begin_item(at)

        def one_step(step: Any, slot: Any) -> Any:
            @pl.when(step < last)
            def fetch_next_step():
                page_copies(at, step + 1, 1 - slot, "start")

            @pl.when((step == last) & (i + 1 < count))
            def fetch_next_item():
                fetch_first(item(i + 1), 1 - slot)

            page_copies(at, step, slot, "wait")
            compute_step(at, step, slot)
            return 1 - slot

        slot = lax.fori_loop(first, last + 1, one_step, slot)

        @pl.when(i > 0)
        def free_results():
            result_copies(item(i - 1), "wait")

        end_item(at)
        return slot

    @pl.when(count > 0)
    def every_item():
        fetch_first(item(0), 0)
        lax.fori_loop(0, count, one_item, jnp.int32(0))
        result_copies(item(count - 1), "wait")


def scale_row(scales: Any, head: Any, block_size: int, low: Any, high: Any) -> Any:
    """Scales of one head `[1, pages * B]`, from those of some pages `[pages, K', B']`.

    Lanes of several pages become one row by a product with zeros and ones. It takes bfloat16, which
    holds the scales whole. Places outside of `low..high-1` get 0.
    """
    pages, _, lanes = scales.shape
    mine = lax.broadcasted_iota(jnp.int32, scales.shape, 1) == head
    own = jnp.sum(jnp.where(mine, scales, 0.0), axis=1)
    lane = lax.broadcasted_iota(jnp.int32, own.shape, 1)
    place = lax.broadcasted_iota(jnp.int32, own.shape, 0) * block_size + lane
    own = jnp.where((lane < block_size) & (place >= low) & (place < high), own, 0.0)
    span = pages * block_size
    column = lax.broadcasted_iota(jnp.int32, (lanes, span), 1)
    spread = lax.broadcasted_iota(jnp.int32, (lanes, span), 0) == lax.rem(column, block_size)
    rows = _product(own.astype(jnp.bfloat16), spread.astype(jnp.bfloat16), 0)
    page = lax.broadcasted_iota(jnp.int32, rows.shape, 1) // block_size
    here = page == lax.broadcasted_iota(jnp.int32, rows.shape, 0)
    return jnp.sum(jnp.where(here, rows, 0.0), axis=0, keepdims=True)


def _product(a: Any, b: Any, axis: int) -> Any:
    """`a @ b` (axis 0) or `a @ b.T` (axis 1), summed in float32."""

    def dot(a: Any, b: Any) -> Any:
        return lax.dot_general(
            a, b, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32,
            precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        )

    return _products.product(dot, a, b)
