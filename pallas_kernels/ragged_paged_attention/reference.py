"""Ragged paged attention as its definition: gather everything, mask, softmax.

Cost grows with `T x M x B` whatever is live: meant to be read and compared with, not to be quick.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels import quantised, storage
from pallas_kernels.quantised import Cache


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
    del positions  # the definition follows from the lengths alone
    num_tokens, num_heads, head_dim = q.shape
    num_sequences, _ = block_tables.shape
    num_kv_heads = keys.shape[2]

    real = sequences < num_sequences
    owner = jnp.where(real, sequences, 0)
    query_lengths = query_starts[1:] - query_starts[:-1]
    index = jnp.arange(num_tokens) - query_starts[owner]
    position = context_lengths[owner] - query_lengths[owner] + index

    def per_token(cache: Cache) -> Array:
        numbers, scales = quantised.parts(cache)
        tables = jnp.maximum(block_tables, 0)
        blocks = storage.from_storage(numbers[layer, tables])  # [S, M, K, B, D]
        if scales is not None:
            live = scales[layer, tables][:, :, :num_kv_heads, : keys.shape[3]]
            blocks = blocks * live[..., None]
        rows = jnp.moveaxis(blocks, 2, 1)  # [S, K, M, B, D]
        return rows.reshape(num_sequences, num_kv_heads, -1, head_dim)[owner]  # [T, K, M*B, D]

    queries = q.astype(jnp.float32).reshape(num_tokens, num_kv_heads, -1, head_dim)
    scores = scale * jnp.einsum("tkgd,tkjd->tkgj", queries, per_token(keys))
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    place = jnp.arange(scores.shape[-1])
    last = position if causal else context_lengths[owner] - 1
    seen = real[:, None] & (place <= last[:, None])  # [T, M*B]
    if window is not None:
        seen &= place > position[:, None] - window
    scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0.0, 1.0, total)
    seen_values = jnp.where(seen[:, None, :, None], per_token(values), 0.0)
    out = jnp.einsum("tkgj,tkjd->tkgd", weights, seen_values)
    return out.reshape(num_tokens, num_heads, head_dim).astype(q.dtype)
