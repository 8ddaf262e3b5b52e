"""Sequences with several queries: tiles of consecutive queries against the spans they may see.

A tile holds queries of one sequence, so its products are matrix products of a useful size, and it
stops at the span of the last position that it sees: of a long prompt, the half that is hidden by
causality is never computed.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels.ragged_paged_attention._spans import LOWEST, Spans, normalise, weigh

TILE = 64


def attend(
    queries: Array,
    spans: Spans,
    context_lengths: Array,
    query_starts: Array,
    query_lengths: Array,
    causal: bool,
) -> Array:
    """Attention of the sequences with two queries or more, `[T, K, G, D]` in and out.

    Tokens of other sequences, and padding, are 0.
    """
    num_tokens, num_kv_heads, group_size, head_dim = queries.shape
    num_sequences, span = query_lengths.shape[0], spans.length
    size = min(TILE, num_tokens)
    rows = size * group_size
    counts = jnp.where(query_lengths > 1, -(-query_lengths // size), 0)
    ends = jnp.cumsum(counts)
    queries = jnp.pad(queries, ((0, size), (0, 0), (0, 0), (0, 0)))  # a tile may overhang the end

    def one_tile(i: Array, out: Array) -> Array:
        owner = jnp.minimum(jnp.sum(ends <= i), num_sequences - 1)
        done = (i - (ends[owner] - counts[owner])) * size
        start = query_starts[owner] + done
        live = jnp.minimum(query_lengths[owner] - done, size)
        first = context_lengths[owner] - query_lengths[owner] + done
        last = first + live - 1  # of its queries
        end = last + 1 if causal else context_lengths[owner]
        tile = jax.lax.dynamic_slice_in_dim(queries, start, size)
        tile = jnp.moveaxis(tile, 0, 1).reshape(num_kv_heads, rows, head_dim)
        position = jnp.minimum(first + jnp.arange(rows) // group_size, last)
        begin = spans.begin(first)

        def one_span(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            top, total, acc = carry
            keys, values = spans.gather(owner, j, end - j * span, begin - j * span)
            scores = spans.scores(jnp.einsum("krd,kpd->krp", tile, keys))
            place = j * span + jnp.arange(span)
            visible = place <= (position[:, None] if causal else end - 1)
            if spans.window is not None:
                visible &= place >= spans.begin(position)[:, None]
            weights, span_top = weigh(scores, visible)
            new_top = jnp.maximum(top, span_top)
            old_factor, factor = jnp.exp2(top - new_top), jnp.exp2(span_top - new_top)
            total = total * old_factor + jnp.sum(weights, axis=-1) * factor
            acc = acc * old_factor[..., None] + (weights @ values) * factor[..., None]
            return new_top, total, acc

        shape = (num_kv_heads, rows)
        carry = (jnp.full(shape, LOWEST), jnp.zeros(shape), jnp.zeros((*shape, head_dim)))
        _, total, acc = jax.lax.fori_loop(begin // span, (end - 1) // span + 1, one_span, carry)
        result = normalise(acc, total).reshape(num_kv_heads, size, group_size, head_dim)
        present = jax.lax.dynamic_slice_in_dim(out, start, size)
        written = (jnp.arange(size) < live)[:, None, None, None]
        result = jnp.where(written, jnp.moveaxis(result, 1, 0), present)
        return jax.lax.dynamic_update_slice_in_dim(out, result, start, 0)

    out = jax.lax.fori_loop(0, ends[-1], one_tile, jnp.zeros_like(queries))
    return out[:num_tokens]
