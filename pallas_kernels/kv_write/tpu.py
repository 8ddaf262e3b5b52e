"""KV write on TPU: the tiles that hold the new rows are fetched, changed and put back by DMA.

Fetches run `AHEAD` runs ahead and write-backs are waited for only when their buffer is needed
again, so that a decode batch, one run per sequence, waits for HBM about once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels import interpret, storage
from pallas_kernels.kv_write import _runs

PREFERRED_ON = ("tpu",)
BUFFERS = 8
AHEAD = 4


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
    stored = keys.dtype
    keys, values = storage.as_numbers(keys), storage.as_numbers(values)
    _, num_blocks, num_kv_heads, block_size, head_dim = keys.shape
    rows = next((n for n in (16, 8) if block_size % n == 0), block_size)
    runs = _runs.runs(write_blocks, write_offsets, num_blocks, block_size, rows)
    scalars = [jnp.reshape(layer, 1), write_blocks, write_offsets, *runs[:2], runs.live[None]]
    scalars = [x.astype(jnp.int32) for x in scalars]
    new = [storage.as_numbers(storage.to_storage(x, stored)) for x in (k, v)]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    tiles = pltpu.VMEM((BUFFERS, num_kv_heads, rows, head_dim), keys.dtype)
    news = pltpu.VMEM((BUFFERS, rows, num_kv_heads, head_dim), keys.dtype)
    written = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[anywhere] * 4,
            out_specs=[anywhere] * 2,
            scratch_shapes=[
                tiles, tiles, news, news, *[pltpu.SemaphoreType.DMA((BUFFERS, 2))] * 3,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (keys, values)],
        input_output_aliases={len(scalars) + 2: 0, len(scalars) + 3: 1},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=interpret.setting_for("tpu"),
        name="kv_write",
    )(*scalars, *new, keys, values)
    new_keys, new_values = (storage.to_storage(x, stored) for x in written)
    return new_keys, new_values


def _kernel(
    layer: Any, blocks: Any, offsets: Any, tokens: Any, first: Any, count: Any,
    k: Any, v: Any, _keys: Any, _values: Any, keys: Any, values: Any,
    key_tiles: Any, value_tiles: Any, new_keys: Any, new_values: Any,
    fetched: Any, loaded: Any, stored: Any,
) -> None:
    rows = key_tiles.shape[2]
    count = count[0]
    kinds = ((0, k, new_keys, keys, key_tiles), (1, v, new_values, values, value_tiles))

    def copies(run: Any, act: str, which: str) -> None:
        """Start or wait for what a run fetches (its tiles and its tokens' rows) or stores."""
        slot = lax.rem(run, BUFFERS)
        token = tokens[first[run]]
        group = offsets[token] // rows
        for kind, new, buffer, cache, tiles in kinds:
            at = cache.at[layer[0], blocks[token]]
            if rows < cache.shape[3]:
                at = at.at[:, pl.ds(group * rows, rows)]
            if which == "store":
                copy = pltpu.make_async_copy(tiles.at[slot], at, stored.at[slot, kind])
                getattr(copy, act)()
                continue
            getattr(pltpu.make_async_copy(at, tiles.at[slot], fetched.at[slot, kind]), act)()

            def row(i: Any, nothing: Any, new=new, buffer=buffer, kind=kind) -> Any:
                copy = pltpu.make_async_copy(
                    new.at[tokens[first[run] + i]], buffer.at[slot, i], loaded.at[slot, kind]
                )
                getattr(copy, act)()
                return nothing

            lax.fori_loop(0, first[run + 1] - first[run], row, 0)

    def change(run: Any) -> None:
        slot = lax.rem(run, BUFFERS)

        def row(i: Any, nothing: Any) -> Any:
            offset = lax.rem(offsets[tokens[first[run] + i]], rows)
            for _, _, buffer, _, tiles in kinds:
                present = tiles[slot]
                here = lax.broadcasted_iota(jnp.int32, present.shape, 1) == offset
                fresh = jnp.broadcast_to(buffer[slot, i][:, None, :], present.shape)
                tiles[slot] = jnp.where(here, fresh, present)
            return nothing

        lax.fori_loop(0, first[run + 1] - first[run], row, 0)

    def each(low: Any, high: Any, body: Any) -> None:
        lax.fori_loop(low, high, lambda i, _: body(i), None)

    def one_run(run: Any) -> None:
        ahead = run + AHEAD

        @pl.when(ahead < count)
        def _():
            @pl.when(ahead >= BUFFERS)
            def _():
                copies(ahead - BUFFERS, "wait", "store")

            copies(ahead, "start", "fetch")

        copies(run, "wait", "fetch")
        change(run)
        copies(run, "start", "store")

    each(0, jnp.minimum(count, AHEAD), lambda run: copies(run, "start", "fetch"))
    each(0, count, one_run)
    each(jnp.maximum(count - BUFFERS, 0), count, lambda run: copies(run, "wait", "store"))
