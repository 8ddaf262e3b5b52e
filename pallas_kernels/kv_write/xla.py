"""KV write as one scatter per array, which XLA does in place when the cache may be overwritten.

The scatter indexes the whole cache (`[layer, block, :, offset]`), never a slice of one layer: a
slice would be copied out and back.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels import storage


def write_kv(
    keys: Array,
    values: Array,
    k: Array,
    v: Array,
    layer: ArrayLike,
    write_blocks: Array,
    write_offsets: Array,
) -> tuple[Array, Array]:
    """See `pallas_kernels.kv_write.api.write_kv`."""
    # Indexing reads -1 as "the last one"; beyond the end is what mode="drop" leaves out.
    blocks = jnp.where(write_blocks < 0, keys.shape[1], write_blocks)
    offsets = jnp.where(write_offsets < 0, keys.shape[3], write_offsets)

    def put(cache: Array, new: Array) -> Array:
        new = storage.to_storage(new, cache.dtype)
        return cache.at[layer, blocks, :, offsets].set(new, mode="drop")

    return put(keys, k), put(values, v)
