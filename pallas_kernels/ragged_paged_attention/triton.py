"""Ragged paged attention for GPU, written in Pallas for Triton.

Triton and not Mosaic GPU: pages of any block size are gathered by pointers, which Triton loads as
they come, while Mosaic's asynchronous copies want aligned boxes of shared memory and run on Hopper
and later only.

Prefill tiles are one program each per KV head. Decodes have too few rows to fill a GPU with
programs, so a long context is split among several (flash-decoding) and the parts are put together
by one small reduction. A split depends on the sequence's own length alone, so batch mates change
nothing.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels import interpret, quantised, storage
from pallas_kernels.quantised import Cache
from pallas_kernels.ragged_paged_attention import _triton_kernel, _triton_tiles, _work
from pallas_kernels.ragged_paged_attention._softmax import Carry
from pallas_kernels.ragged_paged_attention._triton_kernel import Fixed

PREFERRED_ON = ("gpu",)
SHORTEST_SPLIT = 256  # positions; shorter parts cost more to put together than they save
MOST_SPLITS = 16
LEAST_ROWS = 16  # of a product on tensor cores


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
    _, _, num_kv_heads, block_size, _ = keys.shape
    group = num_heads // num_kv_heads
    tile = _triton_tiles.choose(head_dim, q.dtype, numbers[0].dtype)
    padded_group = pl.next_power_of_2(group)
    longest = block_tables.shape[1] * block_size
    decode = Fixed(
        group=group,
        padded_group=max(padded_group, LEAST_ROWS),
        queries=1,
        padded_dim=max(pl.next_power_of_2(head_dim), LEAST_ROWS),
        piece=tile.positions,
        warps=tile.warps,
        splits=min(pl.cdiv(longest, SHORTEST_SPLIT), MOST_SPLITS),
        shortest_split=SHORTEST_SPLIT,
        scale=scale,
        causal=causal,
        window=window,
        soft_cap=soft_cap,
    )
    queries = max(tile.rows // padded_group, 1)
    prefill = Fixed(**{**vars(decode), "padded_group": padded_group, "queries": queries})
    contexts, starts = (jnp.asarray(x, jnp.int32) for x in (context_lengths, query_starts))
    cache = [jnp.asarray(block_tables, jnp.int32), jnp.reshape(layer, 1), *numbers, *scales]
    out = _prefill(prefill, contexts, starts, q, cache)
    token, result = _decode(decode, contexts, starts, q, cache)
    return out.at[token].set(result.astype(q.dtype), mode="drop")


def unfit(q: Array, keys: Cache, block_tables: Array) -> str | None:
    """Why this back end cannot serve such arguments, or None."""
    del keys, block_tables
    if q.shape[2] > _triton_tiles.LARGEST_HEAD:
        return f"head size {q.shape[2]} is above {_triton_tiles.LARGEST_HEAD}"
    return None


def _call(name: str, body: Any, fixed: Fixed, **how: Any) -> Any:
    return pl.pallas_call(
        body,
        name=name,
        compiler_params=triton.CompilerParams(num_warps=fixed.warps, num_stages=2),
        interpret=interpret.setting_for("gpu"),
        **how,
    )


def _prefill(fixed: Fixed, contexts: Array, starts: Array, q: Array, cache: list) -> Array:
    """The rows of sequences with several queries; 0 elsewhere."""
    tiles = _work.prefill_tiles(contexts, starts, q.shape[0], fixed.queries)
    work = [tiles.owner, tiles.first, tiles.live[None]]
    arguments = [contexts, starts, *work, q, *cache, jnp.zeros_like(q)]
    return _call(
        "ragged_paged_prefill",
        functools.partial(_triton_kernel.prefill, fixed),
        fixed,
        grid=(tiles.owner.shape[0], cache[2].shape[2]),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        input_output_aliases={len(arguments) - 1: 0},
    )(*arguments)


def _decode(
    fixed: Fixed, contexts: Array, starts: Array, q: Array, cache: list
) -> tuple[Array, Array]:
    """Results `[S', H, D]` of the sequences with one query, and the token of each (T: none)."""
    num_tokens, num_heads, head_dim = q.shape
    tiles = _work.decode_tiles(contexts, starts, num_tokens)
    parts = (fixed.splits, tiles.owner.shape[0], num_heads)
    tops, totals, accs = _call(
        "ragged_paged_decode",
        functools.partial(_triton_kernel.decode, fixed),
        fixed,
        grid=(parts[1], cache[2].shape[2], fixed.splits),
        out_shape=[
            jax.ShapeDtypeStruct(shape, jnp.float32)
            for shape in (parts, parts, (*parts, head_dim))
        ],
    )(contexts, starts, tiles.owner, tiles.live[None], q, *cache)

    live = jnp.arange(parts[1]) < tiles.live
    end = contexts[tiles.owner]
    begin = fixed.begin(end - 1)
    written = jnp.arange(fixed.splits)[:, None] * fixed.split(begin, end) < end - begin
    result = _reduce(Carry(tops, totals, accs), (written & live)[..., None])
    return jnp.where(live, starts[tiles.owner], num_tokens), result


def _reduce(parts: Carry, written: Array) -> Array:
    """Put the splits `[splits, ...]` of each context together."""
    tops = jnp.where(written, parts.top, -jnp.inf)
    top = jnp.max(tops, axis=0)
    factor = jnp.exp2(tops - jnp.where(jnp.isfinite(top), top, 0.0))
    total = jnp.sum(jnp.where(written, parts.total, 0.0) * factor, axis=0)
    accs = jnp.where(written[..., None], parts.acc, 0.0)
    acc = jnp.sum(accs * factor[..., None], axis=0)
    return acc / jnp.where(total == 0.0, 1.0, total)[..., None]
