"""What SGLang's scheduler remembers, and how the last iteration enters into it."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.rows import NO_ROW, Status
from cbjax.core.steady import Steady, while_nobody_can_enter
from cbjax.core.view import View
from cbjax.policies._sglang_ratio import Ratio


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carried:
    """What SGLang's scheduler remembers between iterations."""

    ratio: Ratio  # new_token_ratio
    full: Bool[Array, ""]  # batch_is_full: nobody is admitted until the running batch shrinks
    chunked: Int[Array, ""]  # row in the middle of its prefill; NO_ROW
    member: Bool[Array, "P"]  # rows of the running batch
    ghosts: Int[Array, ""]  # members of it that ended and were not yet filtered
    last: Bool[Array, "P"]  # rows of the last iteration's prefill batch, decodes included
    last_size: Int[Array, ""]
    fresh: Bool[Array, "P"]  # of these, rows that now come before the decodes they rode with
    unseen: Int[Array, "P"]  # known tokens that the overlap loop has not seen, or has dropped
    idle: Int[Array, ""]  # iterations since something was computed
    turn: Int[Array, ""]
    cached: Any = None  # Cached (see _sglang_cached.py) with the prefix cache


def merge(knobs: dict, carried: Carried, view: View) -> tuple[Carried, View]:
    """The last prefill batch joins the running one, without what ended or is half computed."""
    runs = view.rows.status == Status.RUNNING
    row = jnp.arange(runs.shape[0])
    chunked = jnp.where(jnp.any(runs & (row == carried.chunked)), carried.chunked, NO_ROW)
    member = carried.member & runs
    ended = jnp.sum(carried.member) - jnp.sum(member)
    kept = knobs["keep_finished"]
    ghosts = carried.ghosts + jnp.where(kept, ended, 0)
    joins = carried.last & runs & (row != chunked)
    shrinks = (~kept & (ended > 0)) | (jnp.sum(joins) < carried.last_size)
    # Into an empty running batch the last one comes with its own flag.
    replaces = jnp.any(joins) & ~jnp.any(member) & (ghosts == 0)
    carried = replace(
        carried, chunked=chunked, member=member | joins, ghosts=ghosts,
        full=carried.full & ~shrinks & ~replaces,
    )
    running = lax.cond(
        jnp.any(carried.fresh), lambda: _rotate(view, carried), lambda: view.running
    )
    return carried, replace(view, running=running)


def steady(knobs: dict, carried: Carried, view: View) -> Steady:
    """Decode steps of one running batch: nobody joins it, nothing is half computed."""
    runs = view.rows.status == Status.RUNNING
    settled = jnp.all(carried.member == runs) & ~jnp.any(carried.last | carried.fresh)
    settled &= (carried.chunked == NO_ROW) & (carried.ghosts == 0) & (carried.idle == 0)
    settled &= carried.last_size == 0
    says = while_nobody_can_enter(view, open_=settled)
    # A place that is kept for a while makes an end matter.
    return replace(says, through=says.through & ~jnp.asarray(knobs["keep_finished"]))


def _rotate(view: View, carried: Carried) -> Int[Array, "S"]:
    """The run order after a mixed batch: its prefills, its decodes, the half computed request."""
    running, seats = view.running, view.running.shape[0]
    last = view.seated & (running == carried.chunked)
    first = view.seated & carried.fresh[running] & ~last
    middle = view.seated & ~first & ~last
    place = jnp.select(
        [first, middle, last],
        [
            jnp.cumsum(first) - 1, jnp.sum(first) + jnp.cumsum(middle) - 1,
            jnp.full(seats, view.num_running - 1),
        ],
        seats,
    )
    return jnp.full(seats, NO_ROW, jnp.int32).at[place].set(running, mode="drop")


def unseen(carried: Carried, rows, decodes, prefills, chunked, preempt) -> Int[Array, "P"]:
    """Tokens that the next decision does not know of yet.

    A retraction drops the token on its way, which is then computed once more: the row keeps it
    here, and its next prefill yields nothing new.
    """
    chunk = jnp.arange(decodes.shape[0]) == chunked
    waits = preempt | (rows.status == Status.PREEMPTED) | chunk
    samples = decodes | (prefills & ~chunk)
    return jnp.where(samples, 1, jnp.where(waits, carried.unseen, 0))
