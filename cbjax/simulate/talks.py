"""Turns of conversations: each is due a time to think after the end of the one before it.

When a turn will be due is known only once the answer before it has ended, so requests do not arrive
in an order known beforehand. Those whose moment is known wait in a binary heap; the order in which
they left it takes the place of the order in the workload.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.control import when
from cbjax.core.time import NANOSECONDS, Time

NOBODY = -1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Talks:
    """Who follows whom, and who comes next, of R requests."""

    next_turn: Int[Array, "R"]  # request that waits for this one's end; NOBODY
    think: Time  # [R] from the end of the turn before to this one
    heap: Int[Array, "R"]  # requests whose moment is known, the next one first
    size: Int[Array, ""]  # of the heap
    order: Int[Array, "R"]  # requests as they arrived


def talks_of(after: np.ndarray, think_s: np.ndarray, rows: int) -> Talks:
    """Before the first arrival.

    Args:
        after: `[n]`, the request that each waits for; below 0 = none. Those that wait for none are
            in order of arrival.
        think_s: `[n]` seconds from its end.
        rows: R, at least n.
    """
    count = len(after)
    waits = np.flatnonzero(after >= 0)
    next_turn = np.full(rows, NOBODY, np.int32)
    next_turn[after[waits]] = waits
    think = np.zeros(rows, np.int64)
    think[:count] = np.round(think_s * NANOSECONDS)
    first = np.flatnonzero(after < 0)
    heap = np.zeros(rows, np.int32)
    heap[: len(first)] = first  # what is sorted is a heap
    # numpy stands in for device arrays here, which the annotations do not say.
    return Talks(
        next_turn,  # type: ignore[arg-type]
        Time((think // NANOSECONDS).astype(np.int32), (think % NANOSECONDS).astype(np.int32)),
        heap, np.int32(len(first)), np.zeros(rows, np.int32),  # type: ignore[arg-type]
    )


def next_moment(talks: Talks, arrival: Time) -> Time:
    """When the next request arrives, as far as that is known; `never` if nobody is due."""
    return time.select(talks.size > 0, _at(arrival, talks.heap[0]), time.never())


def arrived_by(
    talks: Talks, arrival: Time, arrived: Int[Array, ""], clock: Time
) -> tuple[Talks, Int[Array, ""]]:
    """Take out who is due by now; `arrived` counts all that were."""
    def due(carry):
        return ~time.before(clock, next_moment(carry[0], arrival)) & (carry[0].size > 0)

    def take(carry):
        talks, arrived = carry
        order = talks.order.at[arrived].set(talks.heap[0])
        size = talks.size - 1
        heap = _sink(talks.heap.at[0].set(talks.heap[size]), size, arrival)
        return replace(talks, heap=heap, size=size, order=order), arrived + 1

    return lax.while_loop(due, take, (talks, arrived))


def follow(
    talks: Talks, arrival: Time, requests: Int[Array, "P"], ended: Bool[Array, "P"], moments: Time
) -> tuple[Talks, Time]:
    """The turns behind those that ended, each from its end on, and their arrivals.

    Args:
        talks, arrival: so far.
        requests: handles.
        ended: which of them ended.
        moments: [P] when.
    """
    turns = jnp.where(ended, talks.next_turn[jnp.where(ended, requests, 0)], NOBODY)

    def add(carry):
        talks, arrival, left = carry
        place = jnp.argmax(left)
        turn = turns[place]
        moment = time.add(_at(moments, place), _at(talks.think, turn))
        arrival = Time(
            arrival.seconds.at[turn].set(moment.seconds),
            arrival.nanoseconds.at[turn].set(moment.nanoseconds),
        )
        heap = _rise(talks.heap.at[talks.size].set(turn), talks.size, arrival)
        return replace(talks, heap=heap, size=talks.size + 1), arrival, left.at[place].set(False)

    def add_all(carry):
        return lax.while_loop(lambda carry: jnp.any(carry[2]), add, (*carry, turns != NOBODY))[:2]

    return when(jnp.any(turns != NOBODY), add_all, (talks, arrival))


def _at(moments: Time, place) -> Time:
    return Time(moments.seconds[place], moments.nanoseconds[place])


def _before(arrival: Time, one, other) -> Bool[Array, ""]:
    """Of requests of one moment the one that comes first in the workload."""
    a, b = _at(arrival, one), _at(arrival, other)
    same = (a.seconds == b.seconds) & (a.nanoseconds == b.nanoseconds)
    return time.before(a, b) | (same & (one < other))


def _swap(heap, one, other):
    return heap.at[one].set(heap[other]).at[other].set(heap[one])


def _rise(heap: Int[Array, "R"], place: Int[Array, ""], arrival: Time) -> Int[Array, "R"]:
    """The heap after its last entry, at `place`, has found where it belongs."""
    def goes(carry):
        heap, place = carry
        return (place > 0) & _before(arrival, heap[place], heap[(place - 1) // 2])

    def up(carry):
        heap, place = carry
        return _swap(heap, place, (place - 1) // 2), (place - 1) // 2

    return lax.while_loop(goes, up, (heap, place))[0]


def _sink(heap: Int[Array, "R"], size: Int[Array, ""], arrival: Time) -> Int[Array, "R"]:
    """The heap of so many entries after its first one has found where it belongs."""
    def lesser(heap, place):
        """The child that comes first; the place itself if there is none."""
        left = jnp.minimum(2 * place + 1, heap.shape[0] - 1)
        right = jnp.minimum(left + 1, heap.shape[0] - 1)
        takes_right = (2 * place + 2 < size) & _before(arrival, heap[right], heap[left])
        return jnp.where(2 * place + 1 < size, jnp.where(takes_right, right, left), place)

    def goes(carry):
        heap, place = carry
        child = lesser(heap, place)
        return (child != place) & _before(arrival, heap[child], heap[place])

    def down(carry):
        heap, place = carry
        child = lesser(heap, place)
        return _swap(heap, place, child), child

    return lax.while_loop(goes, down, (heap, jnp.int32(0)))[0]
