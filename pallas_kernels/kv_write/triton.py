"""KV write on GPU, in Pallas for Triton: one program per token; padding stores nothing."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels import interpret, storage

PREFERRED_ON = ("gpu",)


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
    scalars = [jnp.reshape(layer, 1), write_blocks, write_offsets]
    scalars = [x.astype(jnp.int32) for x in scalars]
    new = [storage.to_storage(x, keys.dtype) for x in (k, v)]
    return pl.pallas_call(
        _program,
        name="kv_write",
        grid=k.shape[:1],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (keys, values)],
        input_output_aliases={5: 0, 6: 1},
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret.setting_for("gpu"),
    )(*scalars, *new, keys, values)


def _program(layer: Any, blocks: Any, offsets: Any, k: Any, v: Any, *caches: Any) -> None:
    *_, keys, values = caches
    token = pl.program_id(0)
    block, offset = triton.load(blocks.at[token]), triton.load(offsets.at[token])
    num_kv_heads, head_dim = k.shape[1:]
    head = jnp.arange(pl.next_power_of_2(num_kv_heads))[:, None]
    lane = jnp.arange(pl.next_power_of_2(head_dim))[None, :]
    present = (head < num_kv_heads) & (lane < head_dim)
    inside = (block >= 0) & (block < keys.shape[1]) & (offset >= 0) & (offset < keys.shape[3])

    def fill(*scalars: Any) -> tuple[Any, ...]:
        return tuple(jnp.broadcast_to(x, present.shape) for x in scalars)

    for new, cache in ((k, keys), (v, values)):
        row = triton.load(new.at[fill(token, head, lane)], mask=present, other=0)
        at = fill(layer[0], block, head, offset, lane)
        triton.store(cache.at[at], row, mask=present & inside)
