"""KV caches of one byte per number: every row of a head has a scale of its own.

A row, the D numbers of one token and KV head, is divided by its scale when it is written and never
touched again. One scale for a whole block would change while the block fills, and with it the
numbers already there: results would depend on how a prompt was cut into chunks. And per row the
scales need no room in the products: keys' multiply the columns of the scores, values' those of the
softmax weights.

Scales are float32 numbers that bfloat16 holds too, rounded up, so that a matrix unit moves them
without loss.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Shaped

from pallas_kernels import storage

GREATEST = {"int8": 127.0, "float8_e4m3fn": 448.0}


class Quantised(NamedTuple):
    """Keys or values of a cache; takes the place of the `[L, N, K, B, D]` array."""

    numbers: Shaped[Array, "L N K B D"]
    scales: Float[Array, "L N K' B'"]  # K and B, on a TPU rounded up to whole tiles

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers."""
        return self.numbers.shape

    @property
    def ndim(self) -> int:
        """Of the numbers."""
        return self.numbers.ndim

    @property
    def dtype(self) -> jnp.dtype:
        """Of the numbers."""
        return self.numbers.dtype


Cache = Array | Quantised


def parts(cache: Cache) -> tuple[Array, Array | None]:
    """The numbers of keys or values, and their scales if they have any."""
    return (cache.numbers, cache.scales) if isinstance(cache, Quantised) else (cache, None)


def quantise(x: Float[Array, "*R D"], dtype: DTypeLike) -> tuple[Array, Float[Array, "*R"]]:
    """Rows as numbers of a stored `dtype` and the scale of each row: a row is their product."""
    name = storage.number_name(dtype)
    x = x.astype(jnp.float32)
    scales = jnp.max(jnp.abs(x), axis=-1) / GREATEST[name]
    bits = jax.lax.bitcast_convert_type(scales, jnp.uint32)
    scales = jax.lax.bitcast_convert_type((bits + 0xFFFF) >> 16 << 16, jnp.float32)
    x = x / jnp.where(scales > 0, scales, 1.0)[..., None]
    x = jnp.clip(jnp.round(x) if name == "int8" else x, -GREATEST[name], GREATEST[name])
    return storage.to_storage(x, dtype), scales


def store(x: Float[Array, "L N K B D"], dtype: DTypeLike) -> Cache:
    """A whole cache of given numbers, in a stored `dtype`."""
    if storage.number_name(dtype) in storage.SCALED_DTYPES:
        return Quantised(*quantise(x, dtype))
    return storage.to_storage(x, dtype)


def write_scales(
    cache: Float[Array, "L N K' B'"], scales: Float[Array, "T K"], layer: ArrayLike,
    write_blocks: Array, write_offsets: Array,
) -> Array:
    """Put the scales of token t's rows where its numbers go; padding writes nothing."""
    blocks = jnp.where(write_blocks < 0, cache.shape[1], write_blocks)
    offsets = jnp.where(write_offsets < 0, cache.shape[3], write_offsets)
    scales = jnp.pad(scales, ((0, 0), (0, cache.shape[2] - scales.shape[1])))
    return cache.at[layer, blocks, :, offsets].set(scales, mode="drop")


def require_cache(keys: Cache, values: Cache) -> None:
    """Raise ValueError unless keys and values are the two halves of one cache."""
    if keys.ndim != 5 or values.shape != keys.shape or values.dtype != keys.dtype:
        raise ValueError(
            f"keys, values: {keys.dtype}{list(keys.shape)} and {values.dtype}{list(values.shape)} "
            "must be one [L, N, K, B, D] shape and dtype, as made by new_kv_cache"
        )
    name = storage.number_name(keys.dtype)
    if name not in storage.CACHE_DTYPES:
        raise ValueError(
            f"keys: dtype {keys.dtype} is not supported; use one of {storage.CACHE_DTYPES}"
        )
    for half, cache in (("keys", keys), ("values", values)):
        if isinstance(cache, Quantised) != (name in storage.SCALED_DTYPES):
            raise ValueError(
                f"{half}: numbers of {name} {'need' if name in GREATEST else 'take no'} scales; "
                "pass what new_kv_cache made"
            )
