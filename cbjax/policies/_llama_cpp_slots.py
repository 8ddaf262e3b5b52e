"""llama.cpp's slots: who is in which one, and the KV that an idle one still remembers.

What an idle slot remembers are whole blocks. They lie in the pool's free list, registered, so that
they are handed out last, and only the slot that they belong to looks for them. Before they would be
handed out they are forgotten, one slot after another, as the original clears idle slots.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import sharing
from cbjax.core.control import when
from cbjax.core.limits import Limits
from cbjax.core.rows import NO_ROW
from cbjax.core.sharing import Shared
from cbjax.core.view import View


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Slots:
    """The slots in the order of their index; M is 0 for slots that remember nothing."""

    row: Int[Array, "S"]  # NO_ROW = idle
    used: Int[Array, "S"]  # stamp of the last release, 0 = never used
    stamp: Int[Array, ""]  # the latest one
    blocks: Int[Array, "S M"]  # physical blocks of what a slot computed, registered ones first
    kept: Int[Array, "S"]  # of these, how many are registered
    overflowed: Bool[Array, ""]  # the last iteration ran out of cells: whoever runs ends

    @property
    def busy(self) -> Bool[Array, "S"]:
        return self.row != NO_ROW

    def along(self, values):
        """Values of the rows in the slots; 0 where a slot is idle."""
        return jnp.where(self.busy, values[self.row], 0)

    def at_rows(self, values: Int[Array, "S"], rows: int) -> Int[Array, "P"]:
        """Values of the slots back at their rows; 0 at all others."""
        place = jnp.where(self.busy, self.row, rows)
        return jnp.zeros(rows, jnp.int32).at[place].set(values, mode="drop")

    def release(self, leave: Bool[Array, "S"]) -> "Slots":
        """Empty slots, in the order of their index; they remember what they computed."""
        return replace(
            self, row=jnp.where(leave, NO_ROW, self.row),
            used=jnp.where(leave, self.stamp + jnp.cumsum(leave), self.used),
            stamp=self.stamp + jnp.sum(leave),
        )

    def idle(self, count) -> Bool[Array, "S"]:
        """Which of the first `count` slots are free."""
        return ~self.busy & (jnp.arange(self.row.shape[0]) < count)

    def oldest(self, count) -> Int[Array, ""]:
        """The idle slot that was released first; the last one of those that were never used."""
        stamps = jnp.where(self.idle(count), self.used, jnp.iinfo(jnp.int32).max)
        return self.row.shape[0] - 1 - jnp.argmin(stamps[::-1])

    def remember(self, shared: Shared) -> "Slots":
        """Note the blocks of the rows in the slots: a row may be gone when its slot is released."""
        row, busy = jnp.maximum(self.row, 0), self.busy
        blocks = shared.blocks
        return replace(
            self, blocks=jnp.where(busy[:, None], blocks.tables[row], self.blocks),
            kept=jnp.where(busy, blocks.cache.entered[row], self.kept),
        )


def empty_slots(limits: Limits, remembers: bool) -> Slots:
    """Idle slots that were never used."""
    seats = limits.seats
    table = limits.blocks_per_sequence if remembers else 0
    return Slots(
        row=jnp.full(seats, NO_ROW, jnp.int32), used=jnp.zeros(seats, jnp.int32),
        stamp=jnp.int32(0), blocks=jnp.zeros((seats, table), jnp.int32),
        kept=jnp.zeros(seats, jnp.int32), overflowed=jnp.bool_(False),
    )


def common(slots: Slots, shared: Shared, view: View, row) -> Int[Array, "S"]:
    """For each idle slot, how many leading tokens of a row it remembers."""
    ids, block_size = view.token_ids[row], view.system.block_size
    position = jnp.arange(ids.shape[0])
    column = jnp.minimum(lax.div(position, block_size), slots.blocks.shape[1] - 1)
    place = slots.blocks[:, column] * block_size + lax.rem(position, block_size)
    content = shared.blocks.cache.content
    same = content[jnp.minimum(place, content.shape[0] - 1)] == ids
    known = position < jnp.minimum(slots.kept[:, None] * block_size, view.rows.known[row])
    same = same & known
    leading = jnp.where(jnp.all(same, axis=1), ids.shape[0], jnp.argmin(same, axis=1))
    return jnp.where(slots.busy, 0, leading.astype(jnp.int32))


def choose(
    slots: Slots, alike: Int[Array, "S"], known: Int[Array, ""], count, similarity
) -> Int[Array, ""]:
    """The idle slot that remembers most of a prompt if that is a large enough share of it.

    Otherwise the one that was released first.
    """
    best = jnp.argmax(jnp.where(slots.idle(count), alike, -1))
    # In 32-bit floats, as in the original.
    share = alike[best].astype(jnp.float32) / known.astype(jnp.float32)
    enough = (similarity > 0) & (alike[best] > 0) & (share > jnp.float32(similarity))
    return jnp.where(enough, best, slots.oldest(count))


def take_up(slots: Slots, shared: Shared, row, slot, hits, block_size) -> Shared:
    """Give a row the first `hits` blocks that its slot remembers, and forget the others."""
    shared = sharing.attach(shared, row, slots.blocks[slot], hits, block_size)
    return sharing.forget(shared, slots.blocks[slot], hits, slots.kept[slot])


def drop_idle(slots: Slots, shared: Shared, need) -> tuple[Slots, Shared]:
    """Let idle slots forget, in the order of their index, until `need` blocks are nobody's."""

    def clear(carry):
        slots, shared = carry
        slot = jnp.argmax(~slots.busy & (slots.kept > 0))
        shared = sharing.forget(shared, slots.blocks[slot], 0, slots.kept[slot])
        return replace(slots, kept=slots.kept.at[slot].set(0)), shared

    def lacks(carry):
        slots, shared = carry
        remembered = jnp.sum(jnp.where(slots.busy, 0, slots.kept))
        return (remembered > 0) & (shared.blocks.free - remembered < need)

    return lax.while_loop(lacks, clear, (slots, shared))


def clear(slots: Slots, shared: Shared, leave: Bool[Array, "S"]) -> tuple[Slots, Shared]:
    """Take all blocks from the rows in slots that are emptied; nothing of them is remembered."""

    def give_back(carry):
        shared, left = carry
        slot = jnp.argmax(left)
        return sharing.leave(shared, slots.row[slot], 0), left.at[slot].set(False)

    shared, _ = lax.while_loop(lambda carry: jnp.any(carry[1]), give_back, (shared, leave))
    return replace(slots, kept=jnp.where(leave, 0, slots.kept)), shared


def serve(
    slots: Slots, shared: Shared, view: View, tokens: Int[Array, "S"], need: Int[Array, "S"]
) -> Shared:
    """Each row takes the blocks it needs and registers those that it fills with `tokens`."""
    block_size, ids = view.system.block_size, view.token_ids

    def turn(carry):
        shared, slot = carry
        row = jnp.maximum(slots.row[slot], 0)
        shared = sharing.grow(shared, row, need[slot])
        full = slots.busy[slot] & (tokens[slot] // block_size > shared.blocks.cache.entered[row])
        return when(
            full, lambda pool: sharing.enter(pool, ids, row, tokens[slot], block_size), shared
        ), slot + 1

    shared, _ = lax.while_loop(
        lambda carry: carry[1] < slots.row.shape[0], turn, (shared, jnp.int32(0))
    )
    return shared
