"""Block copy as one gather and one scatter per array; the definition."""

import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels.block_copy.api import live_pairs


def copy_blocks(
    keys: Array,
    values: Array,
    source_blocks: Array,
    target_blocks: Array,
    source: tuple[Array, Array] | None,
) -> tuple[Array, Array]:
    """See `pallas_kernels.block_copy.api.copy_blocks`."""
    from_keys, from_values = source or (keys, values)
    num_sources, num_blocks = from_keys.shape[1], keys.shape[1]
    live = live_pairs(source_blocks, target_blocks, num_sources, num_blocks)
    target = jnp.where(live, target_blocks, num_blocks)  # beyond the end: dropped
    block = jnp.where(live, source_blocks, 0)
    return (
        keys.at[:, target].set(from_keys[:, block], mode="drop"),
        values.at[:, target].set(from_values[:, block], mode="drop"),
    )
