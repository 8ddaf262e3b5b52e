"""KV on the host: what swapped-out requests held, until they run again.

How much may lie there the scheduler decides (`System.swap_blocks`); here the numbers are moved, one
request at a time, padded to its block table so that one program serves every length.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from cbjax.core.blocks import NO_BLOCK
from cbjax.core.plan import Plan
from cbjax.core.state import State
from pallas_kernels.block_copy.api import copy_blocks
from pallas_kernels.quantised import Cache


@jax.jit
def _read(keys: Cache, values: Cache, table: Int[Array, "M"]) -> tuple[Cache, Cache]:
    """The blocks of one table, `[L, M, K, B, D]`; what padding names is not looked at."""
    return jax.tree.map(lambda x: x[:, table], (keys, values))


@partial(jax.jit, donate_argnames=("keys", "values"))
def _write(keys: Cache, values: Cache, table: Int[Array, "M"], held_keys, held_values):
    """Put those blocks where a table says; padding goes nowhere."""
    return copy_blocks(
        keys, values, jnp.arange(table.shape[0]), table, source=(held_keys, held_values)
    )


@dataclass
class HostPool:
    """The KV of swapped-out requests: keys and values of their blocks, by request."""

    held: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def move(self, keys: Cache, values: Cache, state: State, plan: Plan) -> tuple[Cache, Cache]:
        """Carry out what a plan swaps; returns the cache, which is consumed.

        Args:
            keys, values: the cache before the iteration writes into it.
            state, plan: as `schedule` returned them, the plan on the host. A row that was swapped
                out still has the blocks it held in its table; one that comes back has its new ones.
        """
        tables, swapped = np.asarray(state.blocks.tables), np.asarray(state.rows.swapped)
        for row in np.flatnonzero(plan.swapped_out):
            count = int(swapped[row])
            table = _padded(tables[row], count, 0)
            read = jax.device_get(_read(keys, values, table))
            # A copy of the part in use: the rest need not be kept.
            self.held[int(plan.requests[row])] = jax.tree.map(
                lambda part, count=count: part[:, :count].copy(), read
            )
        for row in np.flatnonzero(plan.swapped_in):
            held = self.held.pop(int(plan.requests[row]))
            count = held[0].shape[1]
            table = _padded(tables[row], count, NO_BLOCK)
            missing = table.shape[0] - count
            keys, values = _write(keys, values, table, *jax.tree.map(
                lambda part, missing=missing: np.pad(
                    part, [(0, missing if axis == 1 else 0) for axis in range(part.ndim)]
                ), held,
            ))
        self._forget_the_gone(state)
        return keys, values

    def warm_up(self, keys: Cache, values: Cache, width: int) -> tuple[Cache, Cache]:
        """Compile both ways for tables of `width`, moving nothing."""
        nowhere = np.full(width, NO_BLOCK, np.int32)
        return _write(keys, values, nowhere, *_read(keys, values, np.zeros(width, np.int32)))

    def _forget_the_gone(self, state: State) -> None:
        """Requests that were aborted on the host never come back."""
        waits = np.asarray(state.rows.request)[np.asarray(state.rows.swapped) > 0]
        for request in self.held.keys() - set(waits.tolist()):
            del self.held[request]


def _padded(table: np.ndarray, count: int, padding: int) -> np.ndarray:
    return np.where(np.arange(table.shape[0]) < count, table, padding).astype(np.int32)
