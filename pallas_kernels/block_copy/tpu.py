"""Block copy on TPU: one DMA per block and array, from HBM to HBM, many under way at a time."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from pallas_kernels import interpret, storage
from pallas_kernels.block_copy.api import live_pairs

PREFERRED_ON = ("tpu",)
UNDER_WAY = 8


def copy_blocks(
    keys: Array,
    values: Array,
    source_blocks: Array,
    target_blocks: Array,
    source: tuple[Array, Array] | None,
) -> tuple[Array, Array]:
    """See `pallas_kernels.block_copy.api.copy_blocks`."""
    stored = keys.dtype
    caches = [storage.as_numbers(x) for x in (keys, values, *(source or ()))]
    live = live_pairs(source_blocks, target_blocks, caches[-1].shape[1], keys.shape[1])
    order = jnp.argsort(~live)  # live ones first
    pairs = [x[order].astype(jnp.int32) for x in (source_blocks, target_blocks)]
    scalars = [*pairs, jnp.sum(live, dtype=jnp.int32)[None]]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    copied = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[anywhere] * len(caches),
            out_specs=[anywhere] * 2,
            scratch_shapes=[pltpu.SemaphoreType.DMA((UNDER_WAY, 2))],
        ),
        out_shape=[jax.ShapeDtypeStruct(keys.shape, caches[0].dtype)] * 2,
        input_output_aliases={len(scalars): 0, len(scalars) + 1: 1},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=interpret.setting_for("tpu"),
        name="block_copy",
    )(*scalars, *caches)
    new_keys, new_values = (storage.to_storage(x, stored) for x in copied)
    return new_keys, new_values


def _kernel(sources: Any, targets: Any, count: Any, *refs: Any) -> None:
    *inputs, keys, values, semaphores = refs
    origins = inputs[2:] or (keys, values)
    count = count[0]

    def copies(pair: Any, act: str) -> None:
        for kind, (origin, cache) in enumerate(zip(origins, (keys, values), strict=True)):
            copy = pltpu.make_async_copy(
                origin.at[:, sources[pair]], cache.at[:, targets[pair]],
                semaphores.at[lax.rem(pair, UNDER_WAY), kind],
            )
            getattr(copy, act)()

    def one(pair: Any, nothing: Any) -> Any:
        @pl.when(pair >= UNDER_WAY)
        def _():
            copies(pair - UNDER_WAY, "wait")

        copies(pair, "start")
        return nothing

    def last(pair: Any, nothing: Any) -> Any:
        copies(pair, "wait")
        return nothing

    lax.fori_loop(0, count, one, 0)
    lax.fori_loop(jnp.maximum(count - UNDER_WAY, 0), count, last, 0)
