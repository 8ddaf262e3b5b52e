"""The book: what is noted of every request while it holds a row, and what is kept when it ends."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.control import when
from cbjax.core.rows import Rows
from cbjax.core.time import Time

# Columns of what is kept, one row per request. A moment that never came has NEVER seconds.
COLUMNS = (
    "arrival_s", "arrival_ns", "visible_s", "visible_ns", "admitted_s", "admitted_ns", "first_s",
    "first_ns", "finished_s", "finished_ns", "max_gap_s", "max_gap_ns", "output_tokens",
    "cached_tokens", "preemptions", "swaps", "recomputed_tokens", "reason",
)
NEVER = -1
REFUSED = 100  # added to a Refusal in the column "reason"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Notes:
    """Of each of P rows; valid while the row is not free."""

    visible: Time
    admitted: Time
    first: Time  # first token
    last: Time  # latest token; valid from the first one on
    max_gap: Time
    output: Int[Array, "P"]
    cached: Int[Array, "P"]
    swaps: Int[Array, "P"]
    recomputed: Int[Array, "P"]


def empty_notes(rows: int) -> Notes:
    """Nothing noted yet."""
    def moment() -> Time:
        return Time(jnp.full(rows, NEVER, jnp.int32), jnp.zeros(rows, jnp.int32))

    def none() -> Array:
        return jnp.zeros(rows, jnp.int32)

    return Notes(
        visible=moment(), admitted=moment(), first=moment(), last=moment(), max_gap=moment(),
        output=none(), cached=none(), swaps=none(), recomputed=none(),
    )


def enter(notes: Notes, mask: Bool[Array, "P"], clock: Time) -> Notes:
    """New requests took the rows in `mask`."""
    def never(moment: Time) -> Time:
        # Whatever its nanoseconds are, it is not and comes before all others.
        return replace(moment, seconds=jnp.where(mask, NEVER, moment.seconds))

    def none(count):
        return jnp.where(mask, 0, count)

    return Notes(
        visible=time.select(mask, clock, notes.visible), admitted=never(notes.admitted),
        first=never(notes.first), last=notes.last, max_gap=never(notes.max_gap),
        output=none(notes.output), cached=none(notes.cached), swaps=none(notes.swaps),
        recomputed=none(notes.recomputed),
    )


def empty_kept(requests: int) -> Int[Array, "R F"]:
    """No request has ended."""
    return jnp.full((requests, len(COLUMNS)), NEVER, jnp.int32)


def keep(
    kept: Int[Array, "R F"], notes: Notes, rows: Rows, requests: Int[Array, "P"],
    mask: Bool[Array, "P"], finished: Time, reason: Int[Array, "P"],
) -> Int[Array, "R F"]:
    """Write down the requests of the rows in `mask`, if there are any.

    Args:
        kept: one row per request.
        notes, rows: of the state, when they ended or since.
        requests: handle of each row.
        mask: rows that ended.
        finished: [P] when.
        reason: FinishReason, or Refusal + REFUSED.
    """
    fields = [
        *_parts(rows.arrival), *_parts(notes.visible), *_parts(notes.admitted),
        *_parts(notes.first), *_parts(finished), *_parts(notes.max_gap), notes.output,
        notes.cached, rows.preemptions, notes.swaps, notes.recomputed, reason,
    ]

    def write(kept):
        table = jnp.stack(fields)

        def one(carry):
            kept, left, row = carry
            values = lax.dynamic_slice(table, (0, row), (table.shape[0], 1))
            kept = lax.dynamic_update_slice(kept, values.reshape(1, -1), (requests[row], 0))
            left = left.at[row].set(False)
            return kept, left, jnp.argmax(left)

        # `argmax` names a row of the mask as long as there is one.
        return lax.while_loop(
            lambda carry: carry[1][carry[2]], one, (kept, mask, jnp.argmax(mask))
        )[0]

    return when(jnp.any(mask), write, kept)


def keep_refused(
    kept: Int[Array, "R F"], requests: Int[Array, "A"], refusals: Int[Array, "A"], arrival: Time,
    clock: Time,
) -> Int[Array, "R F"]:
    """Write down the arrivals that the door turned away; `arrival` is `[A]`."""
    never = jnp.full_like(refusals, NEVER)
    zero = jnp.zeros_like(refusals)
    values = {name: never if name.endswith(("_s", "_ns")) else zero for name in COLUMNS}
    told: dict[str, Any] = dict(
        arrival_s=arrival.seconds, arrival_ns=arrival.nanoseconds,
        finished_s=jnp.broadcast_to(clock.seconds, zero.shape),
        finished_ns=jnp.broadcast_to(clock.nanoseconds, zero.shape), reason=refusals + REFUSED,
    )
    values |= told
    place = jnp.where(refusals != 0, requests, kept.shape[0])
    return kept.at[place].set(jnp.stack(list(values.values()), axis=1), mode="drop")


def deliver_late(
    kept: Int[Array, "R F"], members: Int[Array, "S"], clock: Time
) -> Int[Array, "R F"]:
    """Whole answers reach their users now: `members` ended earlier in their batch; -1 = nobody."""
    place = jnp.where(members >= 0, members, kept.shape[0])
    for name in ("first", "finished"):
        start = COLUMNS.index(f"{name}_s")
        moment = jnp.broadcast_to(
            jnp.stack([clock.seconds, clock.nanoseconds]), (members.shape[0], 2)
        )
        kept = kept.at[place[:, None], start + jnp.arange(2)].set(moment, mode="drop")
    gap = COLUMNS.index("max_gap_s")
    several = kept[jnp.minimum(place, kept.shape[0] - 1), COLUMNS.index("output_tokens")] > 1
    column = jnp.where(several[:, None], 0, NEVER) * jnp.ones(2, jnp.int32)
    return kept.at[place[:, None], gap + jnp.arange(2)].set(column, mode="drop")


def token_out(notes: Notes, got: Bool[Array, "P"], clock: Time) -> tuple[Notes, Time]:
    """A token for each row in `got`; also returns the gap before it, valid from the second on."""
    gap = time.subtract(
        Time(*(jnp.broadcast_to(part, got.shape) for part in _parts(clock))), notes.last
    )
    first = got & (notes.output == 0)
    later = got & ~first
    longer = later & time.before(notes.max_gap, gap)
    return replace(
        notes, first=time.select(first, clock, notes.first),
        last=time.select(got, clock, notes.last),
        max_gap=time.select(longer, gap, notes.max_gap), output=notes.output + got,
    ), gap


def _parts(moment: Time) -> tuple[Any, Any]:
    return moment.seconds, moment.nanoseconds

