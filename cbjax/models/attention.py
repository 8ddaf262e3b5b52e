"""The one door between the decoder and the attention kernels.

The decoder hands over queries, keys and values of one layer and gets mixed values back; which
kernel served, and how the KV cache is laid out, stays on the other side.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from cbjax.core.batch import IterationBatch
from pallas_kernels.backends import names
from pallas_kernels.kv_write.api import write_kv
from pallas_kernels.quantised import Cache, Quantised
from pallas_kernels.ragged_paged_attention.api import ragged_paged_attention


def paged_attention(
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    keys: Shaped[Array, "L N K B D"] | Quantised,
    values: Shaped[Array, "L N K B D"] | Quantised,
    layer: ArrayLike,
    batch: IterationBatch,
    implementation: str | None = None,
) -> tuple[Array, Cache, Cache]:
    """Write the batch's keys and values to the cache, then attend over each sequence's blocks.

    Args:
        q, k, v: this layer's projections of the T tokens, rotated.
        keys, values: the cache of all layers; consumed if donated.
        layer: which layer, a Python or traced integer.
        batch: whose tokens they are and where their KV goes.
        implementation: name of an attention back end, which writes the cache too where it can, or
            None for the best here.

    Returns:
        The mixed values `[T, H, D]` (0 for padding tokens) and the cache.
    """
    blocks, offsets = batch.write_blocks, batch.write_offsets
    if k.shape[0] == 1:
        # XLA turns a scatter of one row into another operation, for which the CPU compiler copies
        # the whole cache in every layer; a second row that writes nowhere keeps it a scatter.
        k, v, offsets = (jnp.concatenate([x, x]) for x in (k, v, offsets))
        blocks = jnp.concatenate([blocks, jnp.full(1, keys.shape[1], blocks.dtype)])
    writer = implementation if implementation in names("pallas_kernels.kv_write") else None
    keys, values = write_kv(keys, values, k, v, layer, blocks, offsets, implementation=writer)
    mixed = ragged_paged_attention(
        q,
        keys,
        values,
        layer,
        block_tables=batch.block_tables,
        context_lengths=batch.context_lengths,
        query_starts=batch.query_starts,
        sequences=batch.sequences,
        positions=batch.positions,
        scale=q.shape[-1] ** -0.5,
        implementation=implementation,
    )
    return mixed, keys, values


def causal_attention(
    q: Float[Array, "T H D"], k: Float[Array, "T K D"], v: Float[Array, "T K D"]
) -> Float[Array, "T H D"]:
    """Attention of one whole sequence over itself, without a cache: the definition to check by."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.einsum("tkgd,ukd->kgtu", grouped, k, precision="highest") * head_dim**-0.5
    seen = jnp.arange(tokens)[:, None] >= jnp.arange(tokens)[None, :]
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("kgtu,ukd->tkgd", shares, v, precision="highest")
    return mixed.reshape(tokens, heads, head_dim)
