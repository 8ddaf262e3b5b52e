"""The workload as arrays: the loop looks at a window of it, whatever its length."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.inbox import Inbox, empty_inbox
from cbjax.core.limits import Limits
from cbjax.core.rows import NO_PREDICTION
from cbjax.core.time import NANOSECONDS, Time
from cbjax.simulate.talks import Talks, arrived_by, follow, next_moment, talks_of
from cbjax.workload import Workload, made_up_token_ids
from cbjax.workload.records import is_token_ids

_LAST = np.iinfo(np.int32).max
_OUTPUTS, _LONGEST = 1 << 30, 1 << 12  # token ids of answers: above every prompt's
VOCABULARY = 1 << 16  # of made-up prompts


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stream:
    """Requests in order of arrival, padded to R that never arrive; C token ids each, or none.

    With `talks` they arrive in an order of their own.
    """

    arrival: Time  # [R]; `never` until it is known, in a closed loop until the request is sent
    prompt: Int[Array, "R"]
    max_tokens: Int[Array, "R"]  # 0 = as many as fit
    priority: Int[Array, "R"]
    predicted: Int[Array, "R"]  # output tokens; NO_PREDICTION
    token_ids: Int[Array, "R C"]  # of the prompts
    count: Int[Array, ""]  # requests
    concurrency: Int[Array, ""]  # of a closed loop: requests inside at a time; else 0
    talks: Talks | None = None


def stream_of(workload: Workload, limits: Limits, size: int | None = None) -> Stream:
    """The requests of a workload as numpy arrays.

    Args:
        workload: its prompts may be lengths; texts must have been tokenised.
        limits: the inbox bounds the window, and `context` how many token ids are kept.
        size: R, to share one compiled program between workloads; by default the next power of two.

    Raises:
        ValueError: a prompt's length is not known, or `size` is too small.
    """
    requests = workload.requests
    unknown = [one.request_id for one in requests if one.prompt_tokens is None]
    if unknown:
        raise ValueError(
            f"prompt_tokens of request {unknown[0]} = None: tokenise the workload first "
            "(cbjax.workload.tokenise_workload), or give lengths"
        )
    arrivals = np.array([
        -1.0 if one.scheduled_arrival_s is None else one.scheduled_arrival_s for one in requests
    ])
    token_ids = None
    if limits.context:
        token_ids = np.zeros((len(requests), limits.context), np.int32)
        for place, one in enumerate(requests):
            ids = one.prompt if one.prompt is not None and is_token_ids(one.prompt) else (
                made_up_token_ids(workload.seed, one, VOCABULARY)
            )
            ids = ids[: limits.context]
            token_ids[place, : len(ids)] = ids
    return stream_of_columns(
        arrivals, np.array([one.prompt_tokens for one in requests]),
        np.array([one.max_tokens or 0 for one in requests]), limits,
        priority=np.array([one.priority for one in requests]),
        predicted=np.array([
            NO_PREDICTION if one.predicted_tokens is None else one.predicted_tokens
            for one in requests
        ]), token_ids=token_ids,
        concurrency=workload.concurrency or 0, size=size,
        after=np.array([-1 if one.after is None else one.after for one in requests]),
        think_s=np.array([one.think_s for one in requests]),
    )


def stream_of_columns(
    arrival_s: np.ndarray, prompt: np.ndarray, max_tokens: np.ndarray, limits: Limits, *,
    priority: np.ndarray | None = None, predicted: np.ndarray | None = None,
    token_ids: np.ndarray | None = None, concurrency: int = 0, size: int | None = None,
    after: np.ndarray | None = None, think_s: np.ndarray | None = None,
) -> Stream:
    """The same from columns of numbers, without a record per request.

    Args:
        arrival_s: ascending, in seconds, rounded to nanoseconds; below 0 = due when an earlier
            request ends (closed loop, or `after`).
        prompt, max_tokens: tokens; 0 output tokens = as many as fit.
        limits: as in `stream_of`.
        priority, predicted, token_ids: or None for all alike.
        concurrency: requests inside at a time in a closed loop; 0 = open.
        size: as in `stream_of`.
        after, think_s: the earlier request after whose end each is due, below 0 for none, and how
            long after; None for none at all.
    """
    count = len(arrival_s)
    padded = (1 << max(count - 1, 1).bit_length()) if size is None else size
    if padded < count:
        raise ValueError(f"size = {size} is below the {count} requests: give as many or more")
    # A window that starts at the last request must stay inside.
    rows = padded + limits.inbox
    moments = np.round(np.asarray(arrival_s, np.float64) * NANOSECONDS).astype(np.int64)
    known = moments >= 0

    def column(values, fill=0):
        return np.concatenate([values, np.full(rows - count, fill)]).astype(np.int32)

    ids = np.zeros((rows, limits.context), np.int32)
    if token_ids is not None:
        ids[:count] = token_ids
    numbers: dict[str, Any] = dict(
        prompt=column(prompt), max_tokens=column(max_tokens),
        priority=column(np.zeros(count) if priority is None else priority),
        predicted=column(np.full(count, NO_PREDICTION) if predicted is None else predicted),
        token_ids=ids,
        count=np.int32(count), concurrency=np.int32(concurrency),
    )
    return Stream(
        arrival=Time(
            column(np.where(known, moments // NANOSECONDS, _LAST), _LAST),
            column(np.where(known, moments % NANOSECONDS, NANOSECONDS - 1), NANOSECONDS - 1),
        ), **numbers,
        talks=None if after is None or think_s is None or np.all(after < 0)
        else talks_of(after, think_s, rows),
    )


def moment_at(stream: Stream, place: Int[Array, ""]) -> Time:
    """When the next request arrives, at `place` in order; `never` behind the last."""
    if stream.talks is not None:
        return next_moment(stream.talks, stream.arrival)
    return Time(stream.arrival.seconds[place], stream.arrival.nanoseconds[place])


def arrive(
    stream: Stream, arrived: Int[Array, ""], alive: Int[Array, ""], clock: Time, window: int,
    closed: bool,
) -> tuple[Stream, Int[Array, ""]]:
    """Count what has arrived by now; in a closed loop a request arrives when there is room.

    Args:
        stream: the requests.
        arrived: how many arrived before.
        alive: requests inside, the ones that wait included.
        clock: now.
        window: requests looked at per turn.
        closed: static; whether `concurrency` counts.
    """
    if stream.talks is not None:
        talks, arrived = arrived_by(stream.talks, stream.arrival, arrived, clock)
        return replace(stream, talks=talks), arrived

    def due(arrived):
        moment = moment_at(stream, arrived)
        return ~time.before(clock, moment) & (arrived < stream.count)

    def more(arrived):
        seconds = lax.dynamic_slice(stream.arrival.seconds, (arrived,), (window,))
        nanoseconds = lax.dynamic_slice(stream.arrival.nanoseconds, (arrived,), (window,))
        # Padding never arrives; sorted, so that counting is enough.
        return arrived + jnp.sum(~time.before(clock, Time(seconds, nanoseconds)))

    before = arrived
    arrived = lax.while_loop(due, more, arrived)
    if not closed:
        return stream, arrived
    inside = alive + arrived - before
    sent = jnp.clip(stream.concurrency - inside, 0, stream.count - arrived)

    def send(carry):
        arrival, place = carry
        return Time(
            arrival.seconds.at[place].set(clock.seconds),
            arrival.nanoseconds.at[place].set(clock.nanoseconds),
        ), place + 1

    until = arrived + sent
    arrival, arrived = lax.while_loop(
        lambda carry: carry[1] < until, send, (stream.arrival, arrived)
    )
    return replace(stream, arrival=arrival), arrived


def answered(
    stream: Stream, requests: Int[Array, "P"], ended: Bool[Array, "P"], moments: Time
) -> Stream:
    """Some requests have ended, at these moments: whoever waited for them is due."""
    if stream.talks is None:
        return stream
    talks, arrival = follow(stream.talks, stream.arrival, requests, ended, moments)
    return replace(stream, talks=talks, arrival=arrival)


def inbox_of(
    stream: Stream, first: Int[Array, ""], count: Int[Array, ""], backlog: Int[Array, ""],
    clock: Time, limits: Limits,
) -> Inbox:
    """The next `count` requests of the backlog, from `first` on, as the scheduler takes them in."""
    def part(values):
        return lax.dynamic_slice(values, (first, *[0] * (values.ndim - 1)),
                                 (limits.inbox, *values.shape[1:]))

    requests = first + jnp.arange(limits.inbox, dtype=jnp.int32)
    if stream.talks is not None:
        requests = part(stream.talks.order)

    def window(values):
        return part(values) if stream.talks is None else jnp.asarray(values)[requests]

    empty = jax.tree.map(jnp.asarray, empty_inbox(limits))
    prompt = window(stream.prompt)
    return Inbox(
        count=count, request=requests, group=empty.group,
        prompt=prompt, known=prompt, max_tokens=window(stream.max_tokens),
        predicted=window(stream.predicted), priority=window(stream.priority),
        arrival=jax.tree.map(window, stream.arrival), deadline=empty.deadline,
        token_ids=window(stream.token_ids), abort=empty.abort, backlog=backlog, clock=clock,
    )


def answer_token(request: Int[Array, "P"], index: Int[Array, "P"]) -> Int[Array, "P"]:
    """Token id of an answer: no two requests have one in common, and none is a prompt's."""
    return _OUTPUTS + (request * _LONGEST + index) % _OUTPUTS
