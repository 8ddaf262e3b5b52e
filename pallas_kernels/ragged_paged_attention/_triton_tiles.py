"""How large the pieces are that the GPU kernels work on: a table by dtypes and head size.

Chosen by the real compiler for Hopper: the largest that need no register spill, on caches of more
than 4 GiB too, and fit shared memory. Not by a clock.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import storage


@dataclass(frozen=True)
class Tile:
    """Sizes of one program."""

    rows: int  # of a prefill tile
    positions: int  # per step
    warps: int


# (dtype of q, dtype of the cache) -> tile for head sizes up to 128, and up to 256.
TILES = {
    ("bfloat16", "bfloat16"): (Tile(64, 64, 4), Tile(64, 64, 8)),
    ("float32", "bfloat16"): (Tile(64, 64, 8), Tile(32, 32, 8)),
    ("float32", "float32"): (Tile(64, 32, 8), Tile(32, 32, 8)),
    ("bfloat16", "int8"): (Tile(64, 64, 4), Tile(64, 64, 8)),
    ("float32", "int8"): (Tile(64, 32, 8), Tile(32, 32, 8)),
    ("bfloat16", "float8_e4m3fn"): (Tile(64, 64, 4), Tile(64, 64, 8)),
    ("float32", "float8_e4m3fn"): (Tile(64, 32, 8), Tile(32, 32, 8)),
}
LARGEST_HEAD = 256


def choose(head_dim: int, query_dtype: DTypeLike, cache_dtype: DTypeLike) -> Tile:
    """The tile for a head size; a bfloat16 q on a float32 cache computes as float32 does."""
    both = jnp.dtype(query_dtype).name, storage.number_name(cache_dtype)
    small, large = TILES.get(both, TILES["float32", "float32"])
    return small if head_dim <= 128 else large
