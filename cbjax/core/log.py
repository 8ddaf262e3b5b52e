"""The log: what one iteration decided, in plain Python, for people, files and comparisons.

A record holds request ids, never rows or arrays, so that logs of two runs, of two machines or of
another system can be laid side by side and stored as JSON.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import jax
import numpy as np

from cbjax.core.inbox import Inbox
from cbjax.core.plan import Emitted, Plan
from cbjax.core.reasons import FinishReason, LimitedBy, Refusal
from cbjax.core.rows import NO_REQUEST, NO_ROW
from cbjax.core.state import State


@dataclass(frozen=True)
class IterationRecord:
    """One iteration; counts are those between `schedule` and `commit`.

    Attributes:
        iteration: its number, from 0.
        scheduled: (request, tokens) in run order.
        new: requests admitted for the first time, in order of admission.
        resumed: requests admitted again after a preemption, in order of admission.
        cached: (request, tokens it found computed) for each of these; empty without sharing.
        preempted: requests that lost their seat, in order of preemption.
        finished: requests that ended with this iteration, in run order.
        finish_reasons: the reason of each of them, as a word.
        free_blocks: free KV blocks.
        waiting: requests that wait, backlog included.
        running: requests that hold a seat.
        backlog: of the waiting, those behind the window.
        refused: (request, reason as a word) turned away at the door or by the policy, in line.
        aborted: requests that an abort ended.
        queue: requests that still wait within the window, first in line first.
        queue_blocks: KV blocks that all known tokens of each of them take; empty if not recorded.
        limited_by: why no further request was admitted, as a word.
        extra_tokens: padding that the policy asked for.
    """

    iteration: int
    scheduled: tuple[tuple[int, int], ...]
    new: tuple[int, ...]
    resumed: tuple[int, ...]
    cached: tuple[tuple[int, int], ...]
    preempted: tuple[int, ...]
    finished: tuple[int, ...]
    finish_reasons: tuple[str, ...]
    free_blocks: int
    waiting: int
    running: int
    backlog: int
    refused: tuple[tuple[int, str], ...]
    aborted: tuple[int, ...]
    queue: tuple[int, ...]
    queue_blocks: tuple[int, ...]
    limited_by: str
    extra_tokens: int


def record(
    iteration: int, inbox: Inbox, plan: Plan, emitted: Emitted, state: State | None = None
) -> IterationRecord:
    """Write one iteration down.

    Args:
        iteration: its number.
        inbox: what `schedule` was given.
        plan: what it returned.
        emitted: what `commit` returned.
        state: the state that `commit` returned; with it, the blocks that waiting requests need are
            recorded too.

    Returns:
        The record; all arrays are fetched to the host.
    """
    if isinstance(plan.running, jax.Array):
        plan, emitted = jax.device_get((plan, emitted))
    handles = plan.requests.tolist()
    running = plan.running.tolist()
    seated = [row for row in running if row != NO_ROW]
    order = plan.queue_order.tolist()

    def ids(rows) -> tuple[int, ...]:
        return tuple(handles[row] for row in rows)

    def in_line(mask) -> list[int]:
        return sorted(np.flatnonzero(mask).tolist(), key=lambda row: order[row])

    arrivals = np.flatnonzero(plan.turned_away)
    refused = [
        (int(inbox.request[entry]), Refusal(int(plan.turned_away[entry])).word)
        for entry in arrivals
    ] + [
        (handles[row], Refusal(int(plan.refused[row])).word)
        for row in in_line(plan.refused)
    ]
    done = [row for row in seated if emitted.finished[row] != FinishReason.NONE]
    queue = in_line(plan.waiting)
    needs: tuple[int, ...] = ()
    if state is not None:
        known, size = jax.device_get((state.rows.known, state.system.block_size))
        needs = tuple(int(-(-known[row] // size)) for row in queue)
    return IterationRecord(
        iteration=iteration,
        scheduled=tuple(
            (handles[row], tokens)
            for row, tokens in zip(running, plan.grants.tolist(), strict=True)
            if tokens > 0
        ),
        new=ids(row for row in seated if plan.admitted[row] and not plan.resumed[row]),
        resumed=ids(row for row in seated if plan.resumed[row]),
        cached=()
        if plan.cached is None
        else tuple((handles[row], int(plan.cached[row])) for row in seated if plan.admitted[row]),
        preempted=ids(_victims(plan, in_line)),
        finished=ids(done),
        finish_reasons=tuple(FinishReason(int(emitted.finished[row])).word for row in done),
        free_blocks=int(plan.free_blocks),
        waiting=int(plan.num_waiting) + int(plan.backlog),
        running=int(plan.num_running),
        backlog=int(plan.backlog),
        refused=tuple(refused),
        aborted=tuple(dict.fromkeys(int(id) for id in plan.aborted_requests if id != NO_REQUEST)),
        queue=ids(queue),
        queue_blocks=needs,
        limited_by=LimitedBy(int(plan.limited_by)).word,
        extra_tokens=int(plan.extra_tokens),
    )


def _victims(plan: Plan, in_line) -> list[int]:
    if plan.preempt_order is None:
        return in_line(plan.preempted)[::-1]
    order = plan.preempt_order.tolist()
    return sorted(np.flatnonzero(plan.preempted).tolist(), key=lambda row: order[row])


def to_json(entry: IterationRecord) -> dict[str, Any]:
    """The record as plain lists, strings and numbers."""
    return asdict(entry)


def from_json(values: dict[str, Any]) -> IterationRecord:
    """The record that `to_json` wrote.

    Raises:
        ValueError: a field is missing or unknown.
    """
    names = {field.name for field in fields(IterationRecord)}
    if set(values) != names:
        raise ValueError(
            f"iteration record with fields {sorted(values)}: expected {sorted(names)}"
        )

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value

    return IterationRecord(**{name: frozen(value) for name, value in values.items()})
