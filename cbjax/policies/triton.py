"""Triton's dynamic batcher: requests are gathered into a batch, and the batch runs as a whole.

Which requests, and how long to wait for more of them, is decided when an instance is idle: a
preferred size is sent at once, otherwise the oldest request may be delayed for company. For a
language model that is static batching with a timer; one instance, nothing sent ahead to it.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from cbjax.core import rules, time
from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy, Refusal
from cbjax.core.rows import Status
from cbjax.core.steady import UNBOUNDED, steady
from cbjax.core.time import Time
from cbjax.core.view import View
from cbjax.policies._batch import Batch, carry_out, form, no_batch

_SIZES = 16  # most preferred sizes: one compiled program for all lists
_MICRO = 1_000_000


def triton(
    max_batch_size: int = 8,
    preferred_batch_size: tuple[int, ...] | None = None,
    max_queue_delay_microseconds: int = 0,
    priority_levels: int = 0,
    default_priority_level: int = 0,
    timeout_action: str = "REJECT",
    default_timeout_microseconds: int = 0,
    allow_timeout_override: bool = False,
    max_queue_size: int = 0,
    allow_ragged_batch: bool = False,
    decoupled: bool = False,
) -> Policy:
    """Triton's dynamic batcher with the names and defaults of its model configuration.

    A batch computes its prompts first, each whole, then a token of every request per iteration; KV
    for the whole output is owned from the start, and a request without KV closes the batch.

    Args:
        max_batch_size: most requests in a batch; the configuration has no default for it.
        preferred_batch_size: sizes that are sent without delay, the largest that is reached; none =
            `max_batch_size`.
        max_queue_delay_microseconds: how long the oldest request may wait for a preferred size. A
            batch whose oldest request is later than that takes whatever waits.
        priority_levels: levels of urgency, 1 first; 0 = one queue for all.
        default_priority_level: level of a request whose priority is no level.
        timeout_action: "REJECT": a request that waited too long is refused; "DELAY": it waits
            behind the others of its level.
        default_timeout_microseconds: how long is too long; 0 = never.
        allow_timeout_override: a request's own deadline counts if it is earlier. Without a default
            timeout it has no effect.
        max_queue_size: most waiting requests of a level, more are refused on arrival; 0 = any
            number. Requests that found no row are not seen.
        allow_ragged_batch: prompts need no padding, and a finished request costs nothing.
        decoupled: a token reaches the client when it is computed, not when the batch ends.

    Raises:
        ValueError: a knob is out of range.

    Source: Triton core 73aad7c, `src/dynamic_batch_scheduler.cc` and `src/scheduler_utils.cc`, and
    the batcher chapter of its user guide.
    """
    require_positive(max_batch_size=max_batch_size)
    sizes = sorted(set(preferred_batch_size or ())) or [max_batch_size]
    if sizes[0] < 1 or sizes[-1] > max_batch_size or len(sizes) > _SIZES:
        raise ValueError(
            f"preferred_batch_size = {preferred_batch_size!r}: give at most {_SIZES} sizes from 1 "
            f"to max_batch_size = {max_batch_size}"
        )
    for name, value in (
        ("max_queue_delay_microseconds", max_queue_delay_microseconds),
        ("priority_levels", priority_levels),
        ("default_timeout_microseconds", default_timeout_microseconds),
        ("max_queue_size", max_queue_size),
    ):
        if int(value) != value or not 0 <= value < 2**31:
            raise ValueError(f"{name} = {value!r}: give a whole number from 0 to {2**31 - 1}")
    if not min(priority_levels, 1) <= default_priority_level <= priority_levels:
        raise ValueError(
            f"default_priority_level = {default_priority_level!r}: give a level from 1 to "
            f"priority_levels = {priority_levels}, or 0 where there are none"
        )
    if timeout_action not in ("REJECT", "DELAY"):
        raise ValueError(f"timeout_action = {timeout_action!r}: choose one of ['REJECT', 'DELAY']")
    return Policy(
        knobs=dict(
            max_batch_size=max_batch_size,
            preferred_batch_size=np.array(sizes + [0] * (_SIZES - len(sizes)), np.int32),
            max_queue_delay_microseconds=max_queue_delay_microseconds,
            priority_levels=priority_levels, default_priority_level=default_priority_level,
            rejects=timeout_action == "REJECT",
            default_timeout_microseconds=default_timeout_microseconds,
            allow_timeout_override=allow_timeout_override, max_queue_size=max_queue_size,
            padded=not allow_ragged_batch,
        ),
        name="triton", init=_init, decide=_decide, steady=_steady, seats="max_batch_size",
        traits=Traits(
            whole_prompts=True, reserves_output=True,
            deliver_at="token" if decoupled else "batch_end",
        ),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carried:
    """The batch that runs, and the queue key of the latest request that was seen."""

    batch: Batch
    latest: Int[Array, ""]


def _init(knobs: dict, limits: Limits, system: System) -> Carried:
    return Carried(no_batch(), jnp.int32(-1))


def _decide(knobs: dict, carried: Carried, view: View):
    rows, padded = view.rows, knobs["padded"]
    level = _levels(knobs, rows.priority)
    deadline = _deadlines(knobs, rows)
    expired = time.before(deadline, view.clock)
    full = _beyond_queue(knobs, carried, view, level)
    refuse = jnp.select(
        [view.waiting & full, view.waiting & expired & knobs["rejects"]],
        [int(Refusal.QUEUE_FULL), int(Refusal.TIMEOUT)], int(Refusal.NONE),
    )
    stays = view.waiting & (refuse == Refusal.NONE)
    status = jnp.where(view.waiting & ~stays, int(Status.FREE), rows.status)
    shown = replace(
        view, rows=replace(rows, status=status), num_waiting=view.backlog + jnp.sum(stays)
    )
    # Whoever was delayed comes after the others of its level.
    queue = form(shown, most=knobs["max_batch_size"], padded=padded, urgency=2 * level + expired)
    size, wake = _size(knobs, view, queue, jnp.where(stays & ~expired, 1, 0), deadline)
    waits = (queue.admitted > 0) & (size == 0)
    limited_by = jnp.select(
        [waits, size < queue.admitted],
        [int(LimitedBy.WAIT_TIMER), int(LimitedBy.BATCH_RUNNING)],
        queue.limited_by,
    )
    decision, batch = carry_out(
        view, queue, carried.batch, size=size, padded=padded, refuse=refuse.astype(jnp.int32),
        limited_by=limited_by, wake=time.select(waits, wake, time.never()),
    )
    latest = jnp.max(jnp.where(view.waiting, rows.queue_order, carried.latest))
    return decision, Carried(batch, latest)


def _steady(knobs: dict, carried: Carried, view: View):
    """A token for each until the last one ends, or until somebody has waited too long."""
    waits = view.waiting & knobs["rejects"]
    return steady(
        UNBOUNDED, through=True,
        limited_by=jnp.where(
            view.num_waiting > 0, int(LimitedBy.BATCH_RUNNING), int(LimitedBy.QUEUE_EMPTY)
        ),
        width=jnp.where(knobs["padded"], carried.batch.size, 0),
        until=_earliest(_deadlines(knobs, view.rows), waits),
    )


def _levels(knobs, priority: Int[Array, "P"]) -> Int[Array, "P"]:
    """The level of each row; the default where its priority is none."""
    known = (priority >= 1) & (priority <= knobs["priority_levels"])
    return jnp.where(known, priority, knobs["default_priority_level"])


def _duration(microseconds) -> Time:
    return Time(
        jnp.int32(microseconds // _MICRO), jnp.int32(microseconds % _MICRO * 1000)
    )


def _deadlines(knobs, rows) -> Time:
    """Until when each row may wait; a request's own deadline can only shorten the default."""
    timeout = knobs["default_timeout_microseconds"]
    limit = time.add(rows.arrival, _duration(timeout))
    own = knobs["allow_timeout_override"] & time.before(rows.deadline, limit)
    limit = time.select(own, rows.deadline, limit)
    return time.select(timeout > 0, limit, time.never(rows.priority.shape))


def _beyond_queue(knobs, carried: Carried, view: View, level):
    """Rows that arrived when the queue of their level was full."""
    most, order = knobs["max_queue_size"], view.rows.queue_order
    new = view.waiting & (order > carried.latest)

    def count():
        before = view.waiting & (order[None, :] < order[:, None])
        return new & (jnp.sum(before & (level[None, :] == level[:, None]), axis=1) >= most)

    return lax.cond((most > 0) & jnp.any(new), count, lambda: jnp.zeros_like(new))


def _size(knobs, view: View, queue: rules.Queue, live: Int[Array, "P"], deadline: Time):
    """How many of the gathered requests are sent now, and when to look again if none is.

    `live` is 1 where a waiting row's deadline is still to come.
    """
    gathered, sizes = queue.admitted, knobs["preferred_batch_size"]
    delay = knobs["max_queue_delay_microseconds"]
    last = jnp.iinfo(jnp.int32).max
    oldest = jnp.argmin(jnp.where(queue.admit, view.rows.queue_order, last))
    due = time.add(
        jax.tree.map(lambda part: part[oldest], view.rows.arrival), _duration(delay)
    )
    late = (delay > 0) & ~time.before(view.clock, due)
    best = jnp.max(jnp.where(sizes <= gathered, sizes, 0))
    # A request that does not fit into this batch will not make it fuller by waiting.
    closed = queue.limited_by != LimitedBy.QUEUE_EMPTY
    at_once = closed | (gathered >= jnp.max(sizes)) | late | (delay == 0)
    size = jnp.where((best > 0) & ~late, best, jnp.where(at_once, gathered, 0))
    # A deadline has passed one moment after it.
    next_one = time.add(_earliest(deadline, live > 0), _duration(1))
    return size, time.select(time.before(next_one, due), next_one, due)


def _earliest(moments: Time, mask) -> Time:
    """The earliest moment under the mask, a little before the end of time if there is none."""
    last = jnp.iinfo(jnp.int32).max - 1
    seconds = jnp.min(jnp.where(mask, jnp.minimum(moments.seconds, last), last))
    same = mask & (moments.seconds == seconds)
    return Time(seconds, jnp.min(jnp.where(same, moments.nanoseconds, time.NANOSECONDS - 1)))
