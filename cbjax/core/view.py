"""What a policy sees: the rows, the run order, and a few numbers of the system. Nothing else."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core.limits import System
from cbjax.core.rows import NO_ROW, Rows, is_waiting
from cbjax.core.time import Time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class View:
    """The table a policy decides on; P rows, S seats.

    `running` lists the rows that hold a seat in run order: prefix sums over it need no sort. The
    queue is ordered by `rows.queue_order`, smallest first.
    """

    rows: Rows
    running: Int[Array, "S"]  # rows in run order, NO_ROW behind the last
    num_running: Int[Array, ""]
    freed: Int[Array, "P"]  # blocks that would become free if the row were released
    hits_held: Int[Array, "P"]  # prefix blocks shared with a holder; 0 without prefix sharing
    hits_free: Int[Array, "P"]  # prefix blocks found in the free list; 0 without prefix sharing
    free_blocks: Int[Array, ""]
    evictable_blocks: Int[Array, ""]  # free blocks that still cache a prefix
    swap_blocks: Int[Array, ""]  # free blocks of the host pool
    backlog: Int[Array, ""]  # requests behind the window
    num_waiting: Int[Array, ""]  # waiting rows and backlog
    finished: Int[Array, ""]  # requests that ended since the last call
    last_kind: Int[Array, ""]  # IterationKind of the last iteration
    last_duration: Time
    clock: Time
    system: System
    # For a policy that shares prefixes, else None: the pool (Blocks), and known tokens [P, C].
    blocks: Any
    token_ids: Any
    # Static: most tokens of one iteration (Limits.tokens).
    iteration_tokens: int = field(metadata={"static": True})

    @property
    def waiting(self) -> Bool[Array, "P"]:
        """Rows that wait for a seat."""
        return is_waiting(self.rows.status)

    @property
    def seated(self) -> Bool[Array, "S"]:
        """Entries of `running` that name a row."""
        return self.running != NO_ROW

    def in_run_order(self, values: Int[Array, "P"]) -> Int[Array, "S"]:
        """Per-row values along the run order; 0 behind the last running row."""
        return jnp.where(self.seated, values[self.running], 0)

    def per_row(self, values: Int[Array, "S"]) -> Int[Array, "P"]:
        """Values along the run order back at their rows; 0 at rows that do not run."""
        # One scatter finds every row's seat and is shared by all calls; a gather costs little.
        rows, seats = self.rows.request.shape[0], self.running.shape[0]
        place = jnp.where(self.seated, self.running, rows)
        seat = jnp.full(rows, seats, jnp.int32).at[place].set(jnp.arange(seats), mode="drop")
        return jnp.where(seat < seats, values[seat], jnp.zeros((), values.dtype))

