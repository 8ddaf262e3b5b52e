"""What the transformers policy remembers, and what it looks at: who is served, in which order."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.limits import Limits, System
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW, Status
from cbjax.core.view import View
from cbjax.policies._transformers import Candidates, Left


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Filled:
    """Blocks that batches under way fill, one entry for each batch, the oldest first."""

    blocks: Int[Array, "K P"]
    samples: Bool[Array, "K P"]  # rows that the batch gives a token
    # Only to say how things stood before the last decision.
    free: Int[Array, ""]  # blocks without content
    findable: Int[Array, ""]  # blocks with content that nobody held


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Progress:
    """What the policy remembers; `attempts` and `fast` only say how the last decision was made."""

    seated: Int[Array, "S"]  # rows in the order in which they got their seat; NO_ROW
    decoding: Bool[Array, "P"]  # rows whose prompt was scheduled to its end
    frozen: Bool[Array, ""]  # nobody is admitted until a request ends
    scarce: Int[Array, ""]  # free blocks below which the safety margin is touched
    reads: Int[Array, ""]  # KV entries that a batch may read
    attempts: Int[Array, ""]  # walks over the requests
    fast: Bool[Array, ""]  # the batch decodes on the fast path
    filled: Any  # Filled with block sharing, else None


def init(knobs: dict, limits: Limits, system: System, *, batches: int) -> Progress:
    """The start; with block sharing `batches` are under way between two decisions, else 0."""
    blocks, size = int(system.num_blocks), int(system.block_size)
    longest = min(int(system.max_length), blocks * size)
    reads = int(knobs["read_budget"]) or blocks * size
    if reads < longest:
        raise ValueError(
            f"read_budget = {reads} is below the {longest} tokens that one request may have: it "
            "could never be read; raise the budget or shorten max_length"
        )
    # Both sides as the original has them: 64-bit floats, each rounded once.
    margin = float(knobs["safety_margin"])
    scarce = next(count for count in range(blocks + 1) if count / blocks >= margin)
    filled = Filled(
        blocks=jnp.zeros((batches, limits.rows), jnp.int32),
        samples=jnp.zeros((batches, limits.rows), bool), free=jnp.int32(blocks),
        findable=jnp.int32(0),
    )
    return Progress(
        seated=jnp.full(limits.seats, NO_ROW, jnp.int32), decoding=jnp.zeros(limits.rows, bool),
        frozen=jnp.bool_(False), scarce=jnp.int32(scarce), reads=jnp.int32(reads),
        attempts=jnp.int32(0), fast=jnp.bool_(False), filled=filled if batches else None,
    )


def candidates(
    knobs, view: View, seated: Int[Array, "S"], decoding: Bool[Array, "P"],
    computed: Int[Array, "P"], held: Int[Array, "P"],
) -> Candidates:
    """The rows with a seat in order of service: two kinds, each in the order of their seats."""
    alive = seated != NO_ROW
    first = alive & (decoding[seated] != knobs["prefill_first"])
    place = jnp.where(
        first, jnp.cumsum(first) - 1, jnp.sum(first) + jnp.cumsum(alive & ~first) - 1
    )
    place = jnp.where(alive, place, seated.shape[0])
    rows = jnp.full_like(seated, NO_ROW).at[place].set(seated, mode="drop")

    def along(values):
        return jnp.where(alive, values[rows], jnp.zeros((), values.dtype))

    return Candidates(
        rows=rows, alive=alive, want=along(view.rows.known - computed),
        computed=along(computed), held=along(held), decoding=along(decoding),
    )


def per_row(rows: Int[Array, "S"], values: Int[Array, "S"], count: int) -> Int[Array, "P"]:
    """Values along a list of rows back at each of `count` rows; 0 at rows that it leaves out."""
    place = jnp.where(rows != NO_ROW, rows, count)
    return jnp.zeros(count, values.dtype).at[place].set(values, mode="drop")


def left_at_start(knobs, progress: Progress, view: View, free) -> Left:
    """What an iteration has before anything is scheduled."""
    return Left(
        tokens=jnp.int32(knobs["max_batch_tokens"]),
        requests=jnp.int32(knobs["max_requests_per_batch"]), reads=progress.reads, free=free,
        fast=jnp.bool_(True), any=jnp.bool_(False), scarce=free < progress.scarce,
        short=jnp.int32(knobs["max_blocks_per_request"] * view.system.block_size),
    )


def queue_keys(view: View, waits: Bool[Array, "P"]) -> Int[Array, "P"]:
    """Keys of the rows that wait: requests with KV in the host pool and the others take turns."""
    order = view.rows.queue_order
    offloaded = view.rows.status == Status.SWAPPED
    others = waits & ~offloaded

    def taking_turns():
        by = jnp.argsort(jnp.where(waits, order, jnp.iinfo(jnp.int32).max))
        kind = offloaded[by]
        place = jnp.where(kind, 2 * jnp.cumsum(kind), 2 * jnp.cumsum(~kind) + 1)
        return jnp.zeros_like(order).at[by].set(place)

    return lax.cond(jnp.any(offloaded) & jnp.any(others), taking_turns, lambda: order)


def why_waiting(
    view: View, waits: Bool[Array, "P"], keys: Int[Array, "P"], *, room_made: Bool[Array, ""],
    closed: Bool[Array, ""], stop: Int[Array, ""], left: Left,
) -> Int[Array, ""]:
    """Why the first in line that still waits was not admitted, as a LimitedBy.

    Args:
        view: the table.
        waits: rows that wait after the decision.
        keys: their places in line.
        room_made: somebody lost the seat.
        closed: nobody was to be admitted.
        stop: LimitedBy that ended the walk; QUEUE_EMPTY = it reached the end.
        left: what the walk left over.
    """
    row = jnp.argmin(jnp.where(waits, keys, jnp.iinfo(jnp.int32).max))
    computed = view.rows.computed[row]
    tokens = jnp.minimum(view.rows.known[row] - computed, left.tokens)
    return jnp.select(
        [
            ~jnp.any(waits) & room_made, ~jnp.any(waits), closed, stop != LimitedBy.QUEUE_EMPTY,
            ~left.reads_allow(tokens, computed),
        ],
        [
            int(LimitedBy.PREEMPTING), int(LimitedBy.QUEUE_EMPTY), int(LimitedBy.FREEZE), stop,
            int(LimitedBy.READS),
        ],
        int(LimitedBy.BLOCKS),
    )
