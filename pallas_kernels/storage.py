"""How KV numbers are stored: the one place that decides, for writers and readers alike.

XLA's CPU compiler in jax before 0.12 widens every movement of bfloat16 data to float32, so that
writing one row into a bfloat16 cache costs as much as copying the cache. There the same bits are
kept as uint16, which nothing widens, and become bfloat16 again after the gather. A uint16 cache
means bfloat16 bits everywhere.

On a TPU arrays lie in tiles of 128 lanes. XLA gives an array whose last axis does not fill them
another order of axes, which a kernel cannot read: the whole cache would be copied in every step. So
heads are widened there to whole tiles, and the numbers that are added are never looked at.

Numbers of one byte come with scales, see `quantised.py`. e4m3 is kept as uint8 everywhere, since
few compilers take its own type; a uint8 cache means e4m3 bits.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

PLAIN_DTYPES = ("float32", "bfloat16")
SCALED_DTYPES = ("int8", "float8_e4m3fn")
CACHE_DTYPES = (*PLAIN_DTYPES, *SCALED_DTYPES)
BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}
LANES = 128


def storage_dtype(dtype: DTypeLike) -> jnp.dtype:
    """The array dtype that holds KV numbers of `dtype` on this jax version and platform.

    Raises:
        ValueError: `dtype` is none of those that a cache may have.
    """
    try:
        name = jnp.dtype(dtype).name
    except TypeError:  # a word that is no dtype at all, "fp8" say
        name = repr(dtype)
    if name not in CACHE_DTYPES:
        raise ValueError(
            f"dtype: {name} is not supported for a KV cache; use one of {CACHE_DTYPES}"
        )
    widened = jax.__version_info__ < (0, 12) and jax.default_backend() == "cpu"
    return jnp.dtype(BITS[name] if name in BITS and (widened or name != "bfloat16") else name)


def number_name(dtype: DTypeLike) -> str:
    """The name of the numbers that a stored dtype means."""
    name = jnp.dtype(dtype).name
    return {bits: number for number, bits in BITS.items()}.get(name, name)


def whole_lanes(head_dim: int) -> int:
    """A head size rounded up to whole tiles of a TPU."""
    return -(-head_dim // LANES) * LANES


def whole_rows(rows: int) -> int:
    """Rows of float32 rounded up to what a TPU has tiles for: 1, 2, 4, or a multiple of 8."""
    return next((n for n in (1, 2, 4) if rows <= n), -(-rows // 8) * 8)


def scales_shape(num_kv_heads: int, block_size: int, wide: bool) -> tuple[int, int]:
    """`[K', B']` of the scales of a block; `wide`: in whole tiles of a TPU."""
    if not wide:
        return num_kv_heads, block_size
    return whole_rows(num_kv_heads), whole_lanes(block_size)


def storage_head_dim(head_dim: int) -> int:
    """Numbers that a cache keeps per head and position on this platform, `head_dim` or more."""
    return whole_lanes(head_dim) if jax.default_backend() == "tpu" else head_dim


def widen(x: Array, stored: int, name: str) -> Array:
    """Queries or new rows `[T, ., D]`, with zeros up to the head size of a cache.

    Raises:
        ValueError: the cache was not made for heads of D numbers.
    """
    head_dim = x.shape[-1]
    if stored not in (head_dim, whole_lanes(head_dim)):
        raise ValueError(
            f"{name}: head size {head_dim} must equal the cache's head size {stored}, or be "
            f"{stored} when rounded up to a multiple of {LANES}"
        )
    return x if stored == head_dim else jnp.pad(x, ((0, 0), (0, 0), (0, stored - head_dim)))


def to_storage(x: Array, dtype: DTypeLike) -> Array:
    """Convert new keys or values to the dtype of the cache that will hold them."""
    stored = jnp.dtype(dtype)
    if x.dtype == stored:
        return x
    numbers = x.astype(jnp.dtype(number_name(dtype)))
    return numbers if numbers.dtype == stored else jax.lax.bitcast_convert_type(numbers, stored)


def from_storage(x: Array) -> Array:
    """Read gathered cache entries as float32 numbers, scales left out."""
    if x.dtype == jnp.bfloat16:
        x = jax.lax.bitcast_convert_type(x, jnp.uint16)  # XLA's own widening on a CPU is slower
    if x.dtype == jnp.uint16:
        # The upper half of a float32 is the bfloat16 of the same number.
        return jax.lax.bitcast_convert_type(x.astype(jnp.uint32) << 16, jnp.float32)
    return from_bytes(x) if x.dtype in (jnp.uint8, jnp.int8) else x.astype(jnp.float32)


def from_bytes(x: Array) -> Array:
    """Numbers of one byte as float32, in operations that kernels have too.

    The NaNs of e4m3 read as 480: a row in which there is one has NaN for its scale.
    """
    if x.dtype == jnp.int8:
        return x.astype(jnp.int32).astype(jnp.float32)
    bits = x.astype(jnp.int32)
    exponent, digits = bits & 0x78, bits & 7
    normal = jax.lax.bitcast_convert_type(((bits & 0x7F) << 20) + (120 << 23), jnp.float32)
    size = jnp.where(exponent == 0, digits.astype(jnp.float32) * 2.0**-9, normal)
    return jnp.where(bits >= 0x80, -size, size)


def as_numbers(cache: Array) -> Array:
    """The cache with its true dtype, for kernels that compute with it as it is; e4m3 in bits."""
    return jax.lax.bitcast_convert_type(cache, jnp.bfloat16) if cache.dtype == jnp.uint16 else cache
