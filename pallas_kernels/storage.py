"""How KV numbers are stored: the one place that decides, for writers and readers alike.

XLA's CPU compiler in jax before 0.12 widens every movement of bfloat16 data to float32, so that
writing one row into a bfloat16 cache costs as much as copying the cache. There the same bits are
kept as uint16, which nothing widens, and become bfloat16 again after the gather. A uint16 cache
means bfloat16 bits everywhere.

On a TPU arrays lie in tiles of 128 lanes. XLA gives an array whose last axis does not fill them
another order of axes, which a kernel cannot read: the whole cache would be copied in every step. So
heads are widened there to whole tiles, and the numbers that are added are never looked at.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

CACHE_DTYPES = ("float32", "bfloat16")
STORED_DTYPES = (*CACHE_DTYPES, "uint16")
LANES = 128


def storage_dtype(dtype: DTypeLike) -> jnp.dtype:
    """The array dtype that holds KV numbers of `dtype` on this jax version and platform.

    Raises:
        ValueError: `dtype` is neither float32 nor bfloat16.
    """
    name = jnp.dtype(dtype).name
    if name not in CACHE_DTYPES:
        raise ValueError(
            f"dtype: {name} is not supported for a KV cache; use one of {CACHE_DTYPES}"
        )
    widened = jax.__version_info__ < (0, 12) and jax.default_backend() == "cpu"
    return jnp.dtype("uint16") if name == "bfloat16" and widened else jnp.dtype(name)


def whole_lanes(head_dim: int) -> int:
    """A head size rounded up to whole tiles of a TPU."""
    return -(-head_dim // LANES) * LANES


def storage_head_dim(head_dim: int) -> int:
    """Numbers that a cache keeps per head and position on this platform, `head_dim` or more."""
    return whole_lanes(head_dim) if jax.default_backend() == "tpu" else head_dim


def widen(x: Array, keys: Array, name: str) -> Array:
    """Queries or new rows `[T, ., D]`, with zeros up to the head size of a cache.

    Raises:
        ValueError: the cache was not made for heads of D numbers.
    """
    head_dim, stored = x.shape[-1], keys.shape[-1]
    if stored not in (head_dim, whole_lanes(head_dim)):
        raise ValueError(
            f"{name}: head size {head_dim} must equal the cache's head size {stored}, or be "
            f"{stored} when rounded up to a multiple of {LANES}"
        )
    return x if stored == head_dim else jnp.pad(x, ((0, 0), (0, 0), (0, stored - head_dim)))


def to_storage(x: Array, dtype: DTypeLike) -> Array:
    """Convert new keys or values to the dtype of the cache that will hold them."""
    if jnp.dtype(dtype) == jnp.uint16:
        return jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)
    return x.astype(dtype)


def from_storage(x: Array) -> Array:
    """Read gathered cache entries as float32 numbers."""
    if x.dtype == jnp.bfloat16:
        x = jax.lax.bitcast_convert_type(x, jnp.uint16)  # XLA's own widening on a CPU is slower
    if x.dtype == jnp.uint16:
        # The upper half of a float32 is the bfloat16 of the same number.
        return jax.lax.bitcast_convert_type(x.astype(jnp.uint32) << 16, jnp.float32)
    return x.astype(jnp.float32)


def as_numbers(cache: Array) -> Array:
    """The cache with its true dtype, for kernels that compute with it as it is."""
    return jax.lax.bitcast_convert_type(cache, jnp.bfloat16) if cache.dtype == jnp.uint16 else cache


def require_cache(keys: Array, values: Array) -> None:
    """Raise ValueError unless keys and values are the two arrays of one cache."""
    if keys.ndim != 5 or values.shape != keys.shape or values.dtype != keys.dtype:
        raise ValueError(
            f"keys, values: {keys.dtype}{list(keys.shape)} and {values.dtype}{list(values.shape)} "
            "must be one [L, N, K, B, D] shape and dtype, as made by new_kv_cache"
        )
    if keys.dtype.name not in STORED_DTYPES:
        raise ValueError(
            f"keys: dtype {keys.dtype} is not supported; use one of {STORED_DTYPES}"
        )
