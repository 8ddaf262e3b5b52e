"""The one function that copies KV blocks, all layers, keys and values at once."""

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from pallas_kernels import backends, quantised
from pallas_kernels.quantised import Cache, Quantised


def copy_blocks(
    keys: Shaped[Array, "L N K B D"] | Quantised,
    values: Shaped[Array, "L N K B D"] | Quantised,
    source_blocks: Int[Array, "P"],
    target_blocks: Int[Array, "P"],
    *,
    source: tuple[Cache, Cache] | None = None,
    implementation: str | None = None,
) -> tuple[Cache, Cache]:
    """Put block `source_blocks[p]` of `source` in the place of block `target_blocks[p]`.

        keys[:, target_blocks[p]] = source_keys[:, source_blocks[p]]      for each pair p

    A pair of which either block is outside of its pool (padding) copies nothing. No two pairs may
    name the same target, and within one pool no target may be another pair's source.

    Args:
        keys, values: `[L, N, K, B, D]`, from `new_kv_cache`; consumed if the caller donates them.
        source_blocks, target_blocks: `[P]`.
        source: keys and values `[L, N', K, B, D]` of another pool to copy from (a swap); None
            copies within the one given (copy-on-write).
        implementation: name of a back end, or None for the best on this platform.

    Returns:
        The cache with those blocks replaced.

    Raises:
        ValueError: shapes or dtypes that do not belong together, or an unknown implementation.
    """
    quantised.require_cache(keys, values)
    for array in source or ():
        same = array.shape[:1] + array.shape[2:] == keys.shape[:1] + keys.shape[2:]
        if not same or array.dtype != keys.dtype:
            raise ValueError(
                f"source: {array.dtype}{list(array.shape)} may differ from the target pool "
                f"{keys.dtype}{list(keys.shape)} in its number of blocks only"
            )
    source_blocks, target_blocks = jnp.asarray(source_blocks), jnp.asarray(target_blocks)
    if source_blocks.ndim != 1 or target_blocks.shape != source_blocks.shape:
        raise ValueError(
            f"source_blocks, target_blocks: shapes {list(source_blocks.shape)} and "
            f"{list(target_blocks.shape)} must be one [P]"
        )
    backend = backends.choose("pallas_kernels.block_copy", "copy_blocks", implementation, keys)
    caches = [quantised.parts(x) for x in (keys, values, *(source or ()))]

    def copied(halves: list[Array]) -> tuple[Array, Array]:
        return backend(*halves[:2], source_blocks, target_blocks, tuple(halves[2:]) or None)

    numbers = copied([numbers for numbers, _ in caches])
    scales = [scales[:, :, None] for _, scales in caches if scales is not None]
    if not scales:
        return numbers
    new_keys, new_values = (
        Quantised(n, s[:, :, 0]) for n, s in zip(numbers, copied(scales), strict=True)
    )
    return new_keys, new_values


def live_pairs(
    source_blocks: Array, target_blocks: Array, num_sources: int, num_targets: int
) -> Array:
    """Which pairs `[P]` copy something."""
    inside = (source_blocks >= 0) & (source_blocks < num_sources)
    return inside & (target_blocks >= 0) & (target_blocks < num_targets)
