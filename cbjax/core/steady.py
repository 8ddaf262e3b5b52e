"""Steady decoding: what a policy says of the iterations ahead while all that runs decodes.

When every running request decodes, nobody arrives and blocks suffice, most policies decide the same
iteration after iteration. A simulator may then take many at once. Which policy does so, and for how
long, only the policy knows: it answers with a `Steady`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.reasons import LimitedBy
from cbjax.core.time import Time
from cbjax.core.view import View

UNBOUNDED = 1 << 30


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Steady:
    """The iterations ahead, all alike: each running row gets a token, nothing else changes.

    It is asked when every running row has one token to compute, its answer's last one. It holds as
    long as nobody arrives, the clock is before `until` and the blocks that the rows need leave
    `spare` ones free.
    """

    turns: Int[Array, ""]  # most iterations that are alike; 0 = ask `decide`
    through: Bool[Array, ""]  # an end changes nothing for the others; else it ends the sameness
    limited_by: Int[Array, ""]  # LimitedBy of all of them
    spare: Int[Array, ""]  # blocks that stay free beyond what the rows need
    width: Int[Array, ""]  # positions of each iteration at least, padding asked for included
    until: Time  # iterations that begin at this moment or later may differ


def steady(
    turns: Int[Array, ""] | int, *, through: Bool[Array, ""] | bool,
    limited_by: Int[Array, ""] | int = LimitedBy.QUEUE_EMPTY, spare: int = 0,
    width: Int[Array, ""] | int = 0, until: Time | None = None,
) -> Steady:
    """The record from plain numbers."""
    def number(value) -> Array:
        return jnp.asarray(value, jnp.int32)

    return Steady(
        number(turns), jnp.asarray(through), number(limited_by), number(spare), number(width),
        time.never() if until is None else until,
    )


def while_nobody_can_enter(
    view: View, *, open_: Bool[Array, ""] | bool = True, seats: Int[Array, ""] | None = None,
    spare: int = 0, held_up: Int[Array, ""] | int = LimitedBy.QUEUE_EMPTY,
) -> Steady:
    """Steady for as long as nobody waits, all `seats` are taken, or the first in line is held up.

    Args:
        view: the table.
        open_: further conditions of the policy.
        seats: seats of a policy whose queue stops at the first request once they are taken.
        spare: blocks that stay free.
        held_up: LimitedBy of the first in line, of a queue that stops there, if it stays out as
            long as the same requests run and blocks become fewer; QUEUE_EMPTY = it may enter.
    """
    empty = view.num_waiting == 0
    taken = jnp.bool_(False) if seats is None else view.num_running >= seats
    stays_out = (held_up != LimitedBy.QUEUE_EMPTY) & jnp.any(view.waiting)
    return steady(
        jnp.where((empty | taken | stays_out) & open_, UNBOUNDED, 0), through=empty,
        limited_by=jnp.select(
            [empty, taken], [int(LimitedBy.QUEUE_EMPTY), int(LimitedBy.SEATS)], held_up
        ), spare=spare,
    )
