"""Sequences with one query: a flat list of live (sequence, span) items, some lanes at a time.

Contexts differ in length, so the lanes are filled from the list of all live spans, in sequence
order, and not sequence by sequence. The list is never stored: an item finds its owner by comparing
its number with the running totals of spans.

The owners within one turn follow each other, so their accumulators are a window of consecutive
rows, and the cost of a turn does not grow with the number of seats.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels.ragged_paged_attention._spans import LOWEST, Spans, normalise, weigh

LANES = 8


def attend(queries: Array, spans: Spans, lengths: Array) -> Array:
    """Attention of one query per sequence, `[S, K, G, D]` in and out.

    Args:
        queries: scaled queries; those of sequences that do not decode are ignored.
        spans: the cache.
        lengths: `[S]` context length of each decoding sequence, 0 for all others.
    """
    num_sequences, num_kv_heads, group_size, _ = queries.shape
    span = spans.length
    begins = spans.begin(lengths - 1)
    first = begins // span
    counts = -(-lengths // span) - first
    ends = jnp.cumsum(counts)
    starts = ends - counts
    rank = jnp.cumsum(counts > 0) - 1  # accumulator row of each decoding sequence

    def turn(carry):
        done, top, total, acc = carry
        item = done + jnp.arange(LANES)
        owner = jnp.minimum(jnp.sum(ends <= item[:, None], axis=1), num_sequences - 1)
        index = jnp.minimum(first[owner] + item - starts[owner], spans.per_sequence - 1)
        live = jnp.where(item < ends[-1], lengths[owner] - index * span, 0)
        dead = begins[owner] - index * span
        keys, values = spans.gather(owner, index, live, dead)

        # So few rows per product: multiply and sum is quicker than a matrix product.
        scores = spans.scores(jnp.sum(queries[owner][:, :, :, None, :] * keys[:, :, None], axis=-1))
        visible = jnp.arange(span) < live[:, None]
        if spans.window is not None:
            visible &= jnp.arange(span) >= dead[:, None]
        weights, item_top = weigh(scores, visible[:, None, None])
        item_total = jnp.sum(weights, axis=-1)
        item_acc = jnp.sum(weights[..., None] * values[:, :, None], axis=-2)

        window = rank[owner[0]]
        row = jnp.where(live > 0, rank[owner] - window, LANES)

        def rows(x: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, window, LANES)

        def put(x: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(x, new, window, 0)

        new_top = rows(top).at[row].max(item_top, mode="drop")
        old_factor = jnp.exp2(rows(top) - new_top)
        factor = jnp.exp2(item_top - new_top.at[row].get(mode="clip"))
        new_total = (rows(total) * old_factor).at[row].add(item_total * factor, mode="drop")
        new_acc = rows(acc) * old_factor[..., None]
        new_acc = new_acc.at[row].add(item_acc * factor[..., None], mode="drop")
        return done + LANES, put(top, new_top), put(total, new_total), put(acc, new_acc)

    shape = (num_sequences + LANES, num_kv_heads, group_size)
    carry = (
        jnp.int32(0),
        jnp.full(shape, LOWEST),
        jnp.zeros(shape),
        jnp.zeros((*shape, spans.head_dim)),
    )
    _, _, total, acc = jax.lax.while_loop(lambda carry: carry[0] < ends[-1], turn, carry)
    return normalise(acc, total)[rank]
