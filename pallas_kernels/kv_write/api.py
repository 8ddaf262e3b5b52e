"""The KV cache and how a batch's new keys and values enter it.

One array pair holds all layers, `[L, N, K, B, D]`: head-major blocks, so that the products of
attention read one contiguous `[B, D]` stretch per KV head. Carry the pair through a scan over
layers and donate it to the jitted step: then each write touches only the rows it names.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Int, Shaped

from pallas_kernels import backends, storage


def new_kv_cache(
    num_layers: int,
    num_blocks: int,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: DTypeLike,
) -> tuple[Array, Array]:
    """An empty cache: keys and values, `[L, N, K, B, D]` each, zero, two separate buffers.

    On a TPU, D is `head_dim` rounded up to a multiple of 128.

    Args:
        num_layers: L.
        num_blocks: N, physical KV blocks.
        num_kv_heads: K.
        block_size: B, token positions per block.
        head_dim: D.
        dtype: float32 or bfloat16 (kept as uint16 bits where jax is slow with bfloat16; the
            kernels read both alike).

    Raises:
        ValueError: a size below 1, or an unsupported dtype.
    """
    sizes = {
        "num_layers": num_layers,
        "num_blocks": num_blocks,
        "num_kv_heads": num_kv_heads,
        "block_size": block_size,
        "head_dim": head_dim,
    }
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: {size} is too small; it must be at least 1")
    shape = (*list(sizes.values())[:-1], storage.storage_head_dim(head_dim))
    dtype = storage.storage_dtype(dtype)
    return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)


def write_kv(
    keys: Shaped[Array, "L N K B D"],
    values: Shaped[Array, "L N K B D"],
    k: Shaped[Array, "T K D"],
    v: Shaped[Array, "T K D"],
    layer: ArrayLike,
    write_blocks: Int[Array, "T"],
    write_offsets: Int[Array, "T"],
    *,
    implementation: str | None = None,
) -> tuple[Array, Array]:
    """Put token t's keys and values at `[layer, write_blocks[t], :, write_offsets[t]]`.

    A token whose block is outside `0..N-1` (padding) or whose offset is outside `0..B-1` writes
    nothing. No two tokens may name the same place.

    Args:
        keys, values: `[L, N, K, B, D]`, from `new_kv_cache`; consumed if the caller donates them.
        k, v: `[T, K, D]`, converted to the dtype of the cache.
        layer: which layer, a Python or traced integer.
        write_blocks: `[T]` physical KV block of each token.
        write_offsets: `[T]` position inside the block.
        implementation: name of a back end, or None for the best on this platform.

    Returns:
        The cache with those rows replaced.

    Raises:
        ValueError: shapes or dtypes that do not belong together, or an unknown implementation.
    """
    storage.require_cache(keys, values)
    k, v = storage.widen(k, keys, "k"), storage.widen(v, keys, "v")
    expected = (write_blocks.shape[0], keys.shape[2], keys.shape[4])
    for name, array in (("k", k), ("v", v)):
        if array.shape != expected:
            raise ValueError(
                f"{name}: shape {list(array.shape)} does not fit; expected [T, K, D] = "
                f"{list(expected)} for this cache and write_blocks"
            )
    if write_offsets.shape != write_blocks.shape:
        raise ValueError(
            f"write_offsets: shape {list(write_offsets.shape)} does not fit; expected [T] = "
            f"{list(write_blocks.shape)} as write_blocks"
        )
    backend = backends.choose("pallas_kernels.kv_write", "write_kv", implementation, keys, k)
    return backend(keys, values, k, v, layer, write_blocks, write_offsets)
