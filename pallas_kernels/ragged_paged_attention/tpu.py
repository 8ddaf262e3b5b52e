"""Ragged paged attention for TPU: pages fetched ahead by DMA, work proportional to live blocks.

One call serves any mix. The block tables lie in scalar memory, where they steer the copies of
pages from HBM; the cache itself is never gathered or padded. See `_tpu_kernel.py` for the walk.

Any block size and head size is right. HBM tiles are 8 rows (16 of bfloat16) of 128 lanes, so block
sizes that are a multiple of 16 and head sizes that are one of 128 waste no memory and no copy.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels import interpret, quantised, storage
from pallas_kernels.quantised import Cache
from pallas_kernels.ragged_paged_attention import _tpu_kernel, _tpu_tiles, _work

PREFERRED_ON = ("tpu",)
TABLE_BYTES = 960 << 10  # of the MiB of SMEM


def ragged_paged_attention(
    q: Array,
    keys: Cache,
    values: Cache,
    layer: ArrayLike,
    *,
    block_tables: Array,
    context_lengths: Array,
    query_starts: Array,
    sequences: Array,
    positions: Array,
    scale: float,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
) -> Array:
    """See `pallas_kernels.ragged_paged_attention.api.ragged_paged_attention`."""
    del sequences, positions  # both follow from the lengths
    halves = [quantised.parts(x) for x in (keys, values)]
    numbers = [storage.as_numbers(x) for x, _ in halves]
    scales = [x for _, x in halves if x is not None]
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = keys.shape[2:4]
    group = num_heads // num_kv_heads
    tile = _tpu_tiles.choose(
        num_tokens, num_kv_heads, group, head_dim, block_size, block_tables.shape[1],
        q.dtype.itemsize, keys.dtype.itemsize,
    )
    fixed = _tpu_kernel.Fixed(tile.pages, scale, causal, window, soft_cap)
    decodes = _work.decode_tiles(context_lengths, query_starts, num_tokens)
    chunks = _work.prefill_tiles(context_lengths, query_starts, num_tokens, tile.queries)
    scalars: list[Any] = [
        block_tables, context_lengths, query_starts, jnp.reshape(layer, 1),
        decodes.owner, decodes.first, chunks.owner, chunks.first,
        jnp.stack([decodes.live, chunks.live]),
    ]
    scalars = [x.astype(jnp.int32) for x in scalars]
    grouped = q.reshape(num_tokens, num_kv_heads, group, head_dim)

    def scratch(queries: int) -> list[Any]:
        rows = (num_kv_heads, queries * group)
        return [
            pltpu.VMEM((queries, *grouped.shape[1:]), q.dtype),
            pltpu.VMEM((queries, *grouped.shape[1:]), q.dtype),
            pltpu.VMEM((*rows, head_dim), q.dtype),
            pltpu.VMEM((*rows, 1), jnp.float32),
            pltpu.VMEM((*rows, 1), jnp.float32),
            pltpu.VMEM((*rows, head_dim), jnp.float32),
        ]

    pages = pltpu.VMEM((2, num_kv_heads, tile.pages, block_size, head_dim), numbers[0].dtype)
    scale_pages = [
        pltpu.VMEM((2, tile.pages, *x.shape[2:]), jnp.float32) for x in scales
    ]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    out = pl.pallas_call(
        functools.partial(_kernel, fixed=fixed, num_scales=len(scales)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[anywhere] * (4 + len(scales)),
            out_specs=anywhere,
            scratch_shapes=[
                pages, pages, *scale_pages, pltpu.SemaphoreType.DMA((2, 2)),
                pltpu.SemaphoreType.DMA((2,)), *scratch(1), *scratch(tile.queries),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(grouped.shape, q.dtype),
        # Rows that no tile owns keep the zeros they are given.
        input_output_aliases={len(scalars) + 3 + len(scales): 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=interpret.setting_for("tpu"),
        name="ragged_paged_attention",
    )(*scalars, grouped, *numbers, *scales, jnp.zeros_like(grouped))
    return out.reshape(q.shape)


def unfit(q: Array, keys: Cache, block_tables: Array) -> str | None:
    """Why this back end cannot serve such arguments, or None."""
    del q, keys
    sequences, width = block_tables.shape
    held = sequences * -(-width // _tpu_tiles.LANES) * _tpu_tiles.LANES * 4
    if held > TABLE_BYTES:
        return (
            f"block_tables: [{sequences}, {width}] takes {held} bytes of scalar memory, of which "
            f"there are {TABLE_BYTES} for it; use larger blocks or fewer sequences"
        )
    return None


def _kernel(*refs: Any, fixed: _tpu_kernel.Fixed, num_scales: int) -> None:
    rest = iter(refs)

    def take(count: int) -> list[Any]:
        return [next(rest) for _ in range(count)]

    tables, contexts, starts, layer, *lists, counts = take(9)
    q, keys, values = take(3)
    scales, (_zeros, out) = take(num_scales), take(2)
    key_pages, value_pages = take(2)
    scale_pages, (page_copies, row_copies), scratch = take(num_scales), take(2), take(12)
    batch = _tpu_kernel.Batch(tables, contexts, starts, layer)
    memory = _tpu_kernel.Memory(
        q, keys, values, tuple(scales), out, key_pages, value_pages, tuple(scale_pages),
        page_copies, row_copies,
    )
    for kind in range(2):
        own = _tpu_kernel.Scratch(*scratch[6 * kind : 6 * kind + 6])
        tiles = (*lists[2 * kind : 2 * kind + 2], counts[kind])
        _tpu_kernel.walk(fixed, batch, memory, own, tiles)
