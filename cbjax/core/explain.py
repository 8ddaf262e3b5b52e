"""Explanations from a log: why a request waited, and where two runs part.

Both read `IterationRecord`s (`cbjax.core.log`), so they serve the engine, a unit clock, stored
decisions and those of another system alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cbjax.core.log import IterationRecord
from cbjax.core.reasons import LimitedBy

# What a policy decides; the other fields follow from these or only describe.
_DECISIONS = (
    "scheduled", "new", "resumed", "preempted", "finished", "refused", "aborted", "free_blocks",
    "waiting", "running", "extra_tokens",
)


@dataclass(frozen=True)
class Difference:
    """The first decision in which two runs differ."""

    iteration: int
    field: str
    first: Any
    second: Any
    text: str


def why_waiting(log: Sequence[IterationRecord], request_id: int, iteration: int) -> str:
    """Why a request waited in an iteration, in words.

    Args:
        log: records in order, from iteration 0.
        request_id: the request.
        iteration: its number.

    Raises:
        ValueError: there is no such iteration, or the request did not wait within the window.
    """
    if not 0 <= iteration < len(log):
        raise ValueError(f"iteration = {iteration}: the log holds 0..{len(log) - 1}")
    entry = log[iteration]
    if request_id not in entry.queue:
        raise ValueError(
            f"request {request_id} did not wait within the window in iteration {iteration}; "
            f"those that did: {list(entry.queue)}"
        )
    place = entry.queue.index(request_id)
    parts = [f"request {request_id} waited in iteration {iteration}, {place + 1}. in the queue"]
    if request_id in entry.preempted:
        parts.append("it was preempted in this iteration")
    reason = LimitedBy[entry.limited_by.upper()]
    head = entry.queue[0]
    stop = f"admission stopped at request {head}" if place else "admission stopped at it"
    parts.append(f"{stop}: {reason.sentence}")
    if reason in (LimitedBy.BLOCKS, LimitedBy.WATERMARK) and entry.queue_blocks:
        parts.append(
            f"its known tokens take {entry.queue_blocks[0]} KV blocks, {entry.free_blocks} are free"
        )
    return "; ".join(parts)


def first_difference(
    first: Sequence[IterationRecord], second: Sequence[IterationRecord]
) -> Difference | None:
    """The first decision in which two logs differ, or None."""
    for one, other in zip(first, second, strict=False):
        for name in _DECISIONS:
            a, b = getattr(one, name), getattr(other, name)
            if a != b:
                text = (
                    f"iteration {one.iteration}: {name} is {a} in the first run "
                    f"({_stopped(one)}) and {b} in the second ({_stopped(other)})"
                )
                return Difference(one.iteration, name, a, b, text)
    if len(first) != len(second):
        shorter = min(len(first), len(second))
        lengths = f"{len(first)} and {len(second)} iterations"
        text = f"the runs agree until one of them ends ({lengths})"
        return Difference(shorter, "iterations", len(first), len(second), text)
    return None


def explain(
    log: Sequence[IterationRecord], other: Sequence[IterationRecord] | None = None, *,
    request_id: int | None = None, iteration: int | None = None,
) -> str:
    """Say why a request waited, or where two runs part.

    Args:
        log: records of a run.
        other: records of another run to compare with.
        request_id, iteration: the wait to explain; both, where no other run is given.

    Raises:
        ValueError: neither question is asked whole.
    """
    if other is not None:
        difference = first_difference(log, other)
        return difference.text if difference else "both runs decide alike"
    if request_id is None or iteration is None:
        raise ValueError("give request_id and iteration to explain a wait, or a second log")
    return why_waiting(log, request_id, iteration)


def _stopped(entry: IterationRecord) -> str:
    return LimitedBy[entry.limited_by.upper()].sentence
