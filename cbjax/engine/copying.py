"""Copy-on-write: blocks that a sample shares with another only in part, before it writes there.

Which rows take over how much the scheduler decides (`cbjax.core.samples`); here the blocks are
copied that do not stand in both tables.
"""

from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Int

from cbjax.core.blocks import NO_BLOCK
from cbjax.core.plan import Plan
from cbjax.core.state import State
from pallas_kernels.block_copy.api import copy_blocks
from pallas_kernels.quantised import Cache


@partial(jax.jit, donate_argnames=("keys", "values"))
def _copy(keys: Cache, values: Cache, pairs: Int[Array, "2 M"]) -> tuple[Cache, Cache]:
    return copy_blocks(keys, values, pairs[0], pairs[1])


def copy_taken(
    keys: Cache, values: Cache, state: State, plan: Plan, block_size: int
) -> tuple[Cache, Cache]:
    """Carry out what a plan takes over; returns the cache, which is consumed.

    Args:
        keys, values: the cache before the iteration writes into it.
        state, plan: as `schedule` returned them, the plan on the host.
        block_size: token positions per KV block.
    """
    if plan.taken is None or not plan.taken.tokens.any():
        return keys, values
    tables = np.asarray(state.blocks.tables)
    ends = np.asarray(state.rows.computed) - np.asarray(state.rows.in_flight)
    pairs: list[tuple[int, int]] = []
    for row in np.flatnonzero(plan.taken.tokens):
        end, giver = int(ends[row]), int(plan.taken.giver[row])
        first = (end - int(plan.taken.tokens[row])) // block_size
        here = slice(first, -(-end // block_size))
        both = zip(tables[giver, here].tolist(), tables[row, here].tolist(), strict=True)
        pairs += [(source, target) for source, target in both if source != target]
    width = tables.shape[1]
    for begin in range(0, len(pairs), width):
        keys, values = _copy(keys, values, _padded(pairs[begin : begin + width], width))
    return keys, values


def warm_up(keys: Cache, values: Cache, width: int) -> tuple[Cache, Cache]:
    """Compile for tables of `width`, copying nothing."""
    return _copy(keys, values, _padded([], width))


def _padded(pairs: list[tuple[int, int]], width: int) -> np.ndarray:
    filled = pairs + [(NO_BLOCK, NO_BLOCK)] * (width - len(pairs))
    return np.array(filled, np.int32).T
