"""Ragged paged attention on XLA alone, with a cost that follows live blocks.

Positions of a sequence are cut into *spans* of whole blocks (about `SPAN` positions). Two loops
with dynamic trip counts walk what is live and nothing else:

* sequences with one query (decodes): a flat list of (sequence, span) items, `LANES` at a time, so
  that short and long contexts fill the same products;
* sequences with more (prefill chunks): tiles of up to `TILE` consecutive queries, each against the
  spans up to its own last position.

Both keep an online softmax whose running maximum is rounded up to a whole power of two: rescaling
is then exact, and with items added in order a sequence's result does not depend, not even in the
last bit, on which other sequences share the batch.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels import storage

SPAN = 64
LANES = 32
TILE = 32
LOWEST = -1e30  # stands for "no score yet"; finite, so that differences of it stay numbers


def ragged_paged_attention(
    q: Array,
    keys: Array,
    values: Array,
    layer: ArrayLike,
    *,
    block_tables: Array,
    context_lengths: Array,
    query_starts: Array,
    sequences: Array,
    positions: Array,
    scale: float,
) -> Array:
    """See `pallas_kernels.ragged_paged_attention.api.ragged_paged_attention`."""
    num_tokens, num_heads, head_dim = q.shape
    num_sequences, table_width = block_tables.shape
    _, _, num_kv_heads, block_size, _ = keys.shape
    span_blocks = min(max(SPAN // block_size, 1), table_width)
    padding = -table_width % span_blocks
    tables = jnp.pad(jnp.maximum(block_tables, 0), ((0, 0), (0, padding)))
    tables = tables.reshape(num_sequences, -1, span_blocks)
    queries = q.astype(jnp.float32) * (scale * math.log2(math.e))  # powers of 2 instead of e
    queries = queries.reshape(num_tokens, num_kv_heads, -1, head_dim)
    query_lengths = query_starts[1:] - query_starts[:-1]

    def gather(blocks: Array) -> tuple[Array, Array]:
        """Keys and values `[..., K, P, D]` of the blocks `[..., g]` of spans."""
        heads = jnp.arange(num_kv_heads)[:, None]
        rows = (layer * keys.shape[1] + blocks[..., None, :]) * num_kv_heads + heads

        def take(cache: Array) -> Array:
            flat = cache.reshape(-1, block_size * head_dim)
            taken = flat.at[rows].get(mode="promise_in_bounds")
            return storage.from_storage(taken).reshape(*rows.shape[:-1], -1, head_dim)

        return take(keys), take(values)

    out = _prefill(queries, gather, tables, block_size, query_starts, query_lengths, positions)
    decoding = query_lengths == 1
    decoded = _decode(
        queries[jnp.minimum(query_starts[:-1], num_tokens - 1)],
        gather,
        tables,
        block_size,
        jnp.where(decoding, context_lengths, 0),
    )
    targets = jnp.where(decoding, query_starts[:-1], num_tokens)
    out = out.at[targets].set(decoded, mode="drop")
    return out.reshape(num_tokens, num_heads, head_dim).astype(q.dtype)


def _item_softmax(scores: Array, visible: Array, values: Array) -> tuple[Array, Array, Array]:
    """Maximum, sum and weighted values of one item's scores `[..., K, R, P]`."""
    scores = jnp.where(visible, scores, LOWEST)
    top = jnp.ceil(jnp.max(scores, axis=-1))
    weights = jnp.where(visible, jnp.exp2(scores - top[..., None]), 0.0)
    return top, jnp.sum(weights, axis=-1), weights @ values


def _decode(queries: Array, gather, tables: Array, block_size: int, lengths: Array) -> Array:
    """One query per sequence: `[S, K, G, D]` in and out, lengths `[S]` (0 = not decoding)."""
    num_sequences, _, span_blocks = tables.shape
    span = span_blocks * block_size
    lanes = LANES
    ends = jnp.cumsum(-(-lengths // span))
    starts = jnp.concatenate([jnp.zeros(1, ends.dtype), ends[:-1]])

    def body(carry):
        done, top, total, acc = carry
        item = done + jnp.arange(lanes)
        owner = jnp.sum(ends[None, :] <= item[:, None], axis=1)
        target, owner = owner, jnp.minimum(owner, num_sequences - 1)
        index = jnp.minimum(item - starts[owner], tables.shape[1] - 1)
        k, v = gather(tables[owner, index])
        scores = jnp.einsum("ikgd,ikpd->ikgp", queries[owner], k)
        position = index[:, None] * span + jnp.arange(span)
        visible = (position < lengths[owner][:, None]) & (item < ends[-1])[:, None]
        item_top, item_total, item_acc = _item_softmax(scores, visible[:, None, None], v)
        new_top = top.at[target].max(item_top, mode="drop")
        old_factor = jnp.exp2(top - new_top)
        factor = jnp.exp2(item_top - new_top[owner])
        total = (total * old_factor).at[target].add(item_total * factor, mode="drop")
        acc = (
            (acc * old_factor[..., None]).at[target].add(item_acc * factor[..., None], mode="drop")
        )
        return done + lanes, new_top, total, acc

    carry = (
        jnp.int32(0),
        jnp.full(queries.shape[:-1], LOWEST),
        jnp.zeros(queries.shape[:-1]),
        jnp.zeros(queries.shape),
    )
    _, _, total, acc = jax.lax.while_loop(lambda c: c[0] < ends[-1], body, carry)
    return acc / jnp.where(total == 0.0, 1.0, total)[..., None]


def _prefill(
    queries: Array,
    gather,
    tables: Array,
    block_size: int,
    query_starts: Array,
    query_lengths: Array,
    positions: Array,
) -> Array:
    """Sequences with more than one query, `[T, K, G, D]` in and out; zeros elsewhere."""
    num_tokens, num_kv_heads, group_size, head_dim = queries.shape
    num_sequences, _, span_blocks = tables.shape
    span = span_blocks * block_size
    tile = min(TILE, num_tokens)
    rows = tile * group_size
    counts = jnp.where(query_lengths > 1, -(-query_lengths // tile), 0)
    ends = jnp.cumsum(counts)
    padded = jnp.pad(queries, ((0, tile), (0, 0), (0, 0), (0, 0)))
    padded_positions = jnp.pad(positions, (0, tile))

    def one_tile(i: Array, out: Array) -> Array:
        owner = jnp.minimum(jnp.sum(ends <= i), num_sequences - 1)
        index = i - (ends[owner] - counts[owner])
        start = query_starts[owner] + index * tile
        live = jnp.minimum(query_lengths[owner] - index * tile, tile)
        query = jax.lax.dynamic_slice_in_dim(padded, start, tile)
        position = jax.lax.dynamic_slice_in_dim(padded_positions, start, tile)
        last = position[live - 1]
        query = jnp.moveaxis(query, 0, 1).reshape(num_kv_heads, rows, head_dim)
        limit = jnp.repeat(position, group_size)[:, None]

        def one_span(j, carry):
            top, total, acc = carry
            k, v = gather(tables[owner, j])
            scores = jnp.einsum("krd,kpd->krp", query, k)
            visible = j * span + jnp.arange(span) <= jnp.minimum(limit, last)
            item_top, item_total, item_acc = _item_softmax(scores, visible, v)
            new_top = jnp.maximum(top, item_top)
            old_factor, factor = jnp.exp2(top - new_top), jnp.exp2(item_top - new_top)
            total = total * old_factor + item_total * factor
            return new_top, total, acc * old_factor[..., None] + item_acc * factor[..., None]

        shape = (num_kv_heads, rows)
        carry = (jnp.full(shape, LOWEST), jnp.zeros(shape), jnp.zeros((*shape, head_dim)))
        _, total, acc = jax.lax.fori_loop(0, last // span + 1, one_span, carry)
        result = acc / jnp.where(total == 0.0, 1.0, total)[..., None]
        result = jnp.moveaxis(result.reshape(num_kv_heads, tile, group_size, head_dim), 1, 0)
        present = jax.lax.dynamic_slice_in_dim(out, start, tile)
        result = jnp.where((jnp.arange(tile) < live)[:, None, None, None], result, present)
        return jax.lax.dynamic_update_slice_in_dim(out, result, start, 0)

    out = jax.lax.fori_loop(0, ends[-1], one_tile, jnp.zeros_like(padded))
    return out[:num_tokens]
