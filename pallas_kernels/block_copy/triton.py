"""Block copy on GPU, in Pallas for Triton: one program per pair, layer and piece of a block."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array

from pallas_kernels import interpret
from pallas_kernels.block_copy.api import live_pairs

PREFERRED_ON = ("gpu",)
PIECE = 2048  # numbers


def copy_blocks(
    keys: Array,
    values: Array,
    source_blocks: Array,
    target_blocks: Array,
    source: tuple[Array, Array] | None,
) -> tuple[Array, Array]:
    """See `pallas_kernels.block_copy.api.copy_blocks`."""
    flat = [x.reshape(*x.shape[:2], -1) for x in (keys, values, *(source or ()))]
    layers, num_blocks, size = flat[0].shape
    live = live_pairs(source_blocks, target_blocks, flat[-1].shape[1], num_blocks)
    pairs = [jnp.where(live, x, 0).astype(jnp.int32) for x in (source_blocks, target_blocks)]
    scalars = [*pairs, live.astype(jnp.int32)]
    copied = pl.pallas_call(
        functools.partial(_program, size=size),
        name="block_copy",
        grid=(len(source_blocks), layers, pl.cdiv(size, PIECE)),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat[:2]],
        input_output_aliases={3: 0, 4: 1},
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret.setting_for("gpu"),
    )(*scalars, *flat)
    return tuple(x.reshape(keys.shape) for x in copied)


def _program(sources: Any, targets: Any, live: Any, *refs: Any, size: int) -> None:
    *inputs, keys, values = refs
    origins = inputs[2:] or (keys, values)
    pair, layer = pl.program_id(0), pl.program_id(1)
    place = pl.program_id(2) * PIECE + jnp.arange(PIECE)
    mask = (place < size) & (triton.load(live.at[pair]) != 0)
    source, target = triton.load(sources.at[pair]), triton.load(targets.at[pair])

    def at(block: Any) -> tuple[Any, ...]:
        return (*(jnp.broadcast_to(x, place.shape) for x in (layer, block)), place)

    for origin, cache in zip(origins, (keys, values), strict=True):
        piece = triton.load(origin.at[at(source)], mask=mask, other=0)
        triton.store(cache.at[at(target)], piece, mask=mask)
