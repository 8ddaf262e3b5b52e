"""Ragged paged attention on XLA alone, with a cost that follows live blocks.

The positions of a sequence are cut into *spans* (`_spans.py`). Two loops with
dynamic trip counts walk what is live and nothing else: one over the decodes of the batch
(`_decode.py`), one over its prefill chunks (`_prefill.py`). Either loop ends at once when the
batch has none of its kind, so any mix costs what its parts cost.

Spans begin at position 0 whatever the batch, and each sequence's spans are added up in order with
exact rescaling. A token's result therefore does not depend, not even in its last bit, on the other
sequences in the batch, on padding, or on the block size (as long as it divides a span or a span
divides it).
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels.quantised import Cache
from pallas_kernels.ragged_paged_attention import _decode, _prefill, _spans


def ragged_paged_attention(
    q: Array,
    keys: Cache,
    values: Cache,
    layer: ArrayLike,
    *,
    block_tables: Array,
    context_lengths: Array,
    query_starts: Array,
    sequences: Array,
    positions: Array,
    scale: float,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
) -> Array:
    """See `pallas_kernels.ragged_paged_attention.api.ragged_paged_attention`."""
    del sequences, positions  # both follow from the lengths
    num_tokens, num_heads, head_dim = q.shape
    spans = _spans.Spans.of(keys, values, layer, block_tables, window, soft_cap)
    queries = q.astype(jnp.float32) * spans.query_factor(scale)
    queries = queries.reshape(num_tokens, keys.shape[2], -1, head_dim)
    query_lengths = query_starts[1:] - query_starts[:-1]

    out = _prefill.attend(
        queries, spans, context_lengths, query_starts, query_lengths, causal
    )
    decoding = query_lengths == 1
    first = jnp.minimum(query_starts[:-1], num_tokens - 1)
    decoded = _decode.attend(queries[first], spans, jnp.where(decoding, context_lengths, 0))
    out = out.at[jnp.where(decoding, first, num_tokens)].set(decoded, mode="drop")
    return out.reshape(num_tokens, num_heads, head_dim).astype(q.dtype)
