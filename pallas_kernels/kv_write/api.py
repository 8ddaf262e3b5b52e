"""The KV cache and how a batch's new keys and values enter it.

One array pair holds all layers, `[L, N, K, B, D]`: head-major blocks, so that the products of
attention read one contiguous `[B, D]` stretch per KV head. Carry the pair through a scan over
layers and donate it to the jitted step: then each write touches only the rows it names.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Int, Shaped

from pallas_kernels import backends, quantised, storage
from pallas_kernels.quantised import Cache, Quantised


def new_kv_cache(
    num_layers: int,
    num_blocks: int,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: DTypeLike,
) -> tuple[Cache, Cache]:
    """An empty cache: keys and values, `[L, N, K, B, D]` each, zero, two separate buffers.

    On a TPU, D is `head_dim` rounded up to a multiple of 128. With a dtype of one byte, each is a
    pair of such numbers and their scales, which all kernels take in place of an array.

    Args:
        num_layers: L.
        num_blocks: N, physical KV blocks.
        num_kv_heads: K.
        block_size: B, token positions per block.
        head_dim: D.
        dtype: float32, bfloat16, int8 or float8_e4m3fn (kept as their bits where jax is slow with
            them; the kernels read both alike).

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

    def half() -> Cache:
        numbers = jnp.zeros(shape, dtype)
        if storage.number_name(dtype) not in storage.SCALED_DTYPES:
            return numbers
        tile = storage.scales_shape(num_kv_heads, block_size, jax.default_backend() == "tpu")
        return Quantised(numbers, jnp.zeros((*shape[:2], *tile), jnp.float32))

    return half(), half()


def write_kv(
    keys: Shaped[Array, "L N K B D"] | Quantised,
    values: Shaped[Array, "L N K B D"] | Quantised,
    k: Shaped[Array, "T K D"],
    v: Shaped[Array, "T K D"],
    layer: ArrayLike,
    write_blocks: Int[Array, "T"],
    write_offsets: Int[Array, "T"],
    *,
    implementation: str | None = None,
) -> tuple[Cache, Cache]:
    """Put token t's keys and values at `[layer, write_blocks[t], :, write_offsets[t]]`.

    A token whose block is outside `0..N-1` (padding) or whose offset is outside `0..B-1` writes
    nothing. No two tokens may name the same place.

    Args:
        keys, values: `[L, N, K, B, D]`, from `new_kv_cache`; consumed if the caller donates them.
        k, v: `[T, K, D]`, converted to the dtype of the cache; where that has scales, each row
            gets its own.
        layer: which layer, a Python or traced integer.
        write_blocks: `[T]` physical KV block of each token.
        write_offsets: `[T]` position inside the block.
        implementation: name of a back end, or None for the best on this platform.

    Returns:
        The cache with those rows replaced.

    Raises:
        ValueError: shapes or dtypes that do not belong together, or an unknown implementation.
    """
    quantised.require_cache(keys, values)
    k, v = storage.widen(k, keys.shape[4], "k"), storage.widen(v, keys.shape[4], "v")
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
    place = layer, write_blocks, write_offsets
    if not (isinstance(keys, Quantised) and isinstance(values, Quantised)):
        return backend(keys, values, k, v, *place)
    (k, k_scales), (v, v_scales) = (quantised.quantise(x, keys.dtype) for x in (k, v))
    numbers = backend(keys.numbers, values.numbers, k, v, *place)
    return (
        Quantised(numbers[0], quantised.write_scales(keys.scales, k_scales, *place)),
        Quantised(numbers[1], quantised.write_scales(values.scales, v_scales, *place)),
    )
