"""Spans of time in a run: who held which seat, what it computed there, and who waited when.

Pure data from the tables; the pictures and the trace are drawn from the same spans.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from cbjax.metrics import Tables, outcome


@dataclass(frozen=True)
class Stay:
    """A request on a seat, from admission until it finished or was preempted (seconds)."""

    request_id: int
    seat: int
    start_s: float
    end_s: float
    preempted: bool


@dataclass(frozen=True)
class Work:
    """Computation on a seat: one prefill chunk, or a stretch of decodes in consecutive iterations.

    `tokens` were computed in it.
    """

    request_id: int
    seat: int
    kind: str
    start_s: float
    end_s: float
    tokens: int


@dataclass(frozen=True)
class Wait:
    """A request without a seat: `again` after a preemption, otherwise from its arrival on."""

    request_id: int
    lane: int
    start_s: float
    end_s: float
    again: bool


def stays(schedule: pl.DataFrame) -> list[Stay]:
    """Every stay on a seat, in order of its start."""
    closed: list[Stay] = []
    staying: dict[int, Stay] = {}
    for row in schedule.iter_rows(named=True):
        request_id, start_s = row["request_id"], row["start_s"]
        if row["kind"] == "preempted":
            if request_id in staying:
                stay = staying.pop(request_id)
                closed.append(replace(stay, end_s=max(stay.end_s, start_s), preempted=True))
            continue
        end_s = start_s + row["duration_s"]
        stay = staying.get(request_id, Stay(request_id, row["seat"], start_s, end_s, False))
        if stay.seat != row["seat"]:
            closed.append(stay)
            stay = Stay(request_id, row["seat"], start_s, end_s, False)
        staying[request_id] = replace(stay, end_s=end_s)
    return sorted((*closed, *staying.values()), key=lambda stay: (stay.start_s, stay.seat))


def work(schedule: pl.DataFrame) -> list[Work]:
    """Prefill chunks one by one; decodes of consecutive iterations joined."""
    done: list[Work] = []
    open_work: dict[int, tuple[int, Work]] = {}
    for row in schedule.filter(pl.col("kind") != "preempted").iter_rows(named=True):
        request_id, number = row["request_id"], row["iteration"]
        end_s = row["start_s"] + row["duration_s"]
        last_number, last = open_work.get(request_id, (-1, None))
        joins = (
            last is not None
            and last.kind == row["kind"] == "decode"
            and last.seat == row["seat"]
            and number == last_number + 1
        )
        if last is not None and joins:
            current = replace(last, end_s=end_s, tokens=last.tokens + row["tokens"])
        else:
            if last is not None:
                done.append(last)
            current = Work(
                request_id, row["seat"], row["kind"], row["start_s"], end_s, row["tokens"]
            )
        open_work[request_id] = (number, current)
    done.extend(last for _, last in open_work.values())
    return sorted(done, key=lambda span: (span.start_s, span.seat))


def waits(tables: Tables) -> list[Wait]:
    """Every wait for a seat, on as few lanes as possible, first come on the lowest lane.

    A request that never got a seat waits until it ended, or until the last iteration's end.
    Requests refused at the door do not wait.
    """
    if tables.schedule is None:
        return []
    by_request: dict[int, list[Stay]] = {}
    for stay in stays(tables.schedule):
        by_request.setdefault(stay.request_id, []).append(stay)
    ends = tables.schedule.select(pl.col("start_s") + pl.col("duration_s")).to_series()
    last_s = float(ends.max() or 0.0)  # type: ignore[arg-type]
    found: list[Wait] = []
    columns = ("request_id", "scheduled_arrival_s", "finished_s")
    rows = tables.requests.filter(outcome() != "refused").select(columns)
    for request_id, arrival_s, finished_s in rows.iter_rows():
        since, again = arrival_s, False
        for stay in by_request.get(request_id, ()):
            if stay.start_s > since:
                found.append(Wait(request_id, 0, since, stay.start_s, again))
            since, again = (stay.end_s, True) if stay.preempted else (None, False)
        until = last_s if finished_s is None else finished_s
        if since is not None and until > since:
            found.append(Wait(request_id, 0, since, until, again))
    return _in_lanes(found)


def _in_lanes(found: Iterable[Wait]) -> list[Wait]:
    placed: list[Wait] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for wait in sorted(found, key=lambda wait: (wait.start_s, wait.end_s, wait.request_id)):
        while busy and busy[0][0] <= wait.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (wait.end_s, lane))
        placed.append(replace(wait, lane=lane))
    return placed


def request_name(names: Mapping[int, str], request_id: int) -> str:
    """The request's own name if the example gave it one, else its id."""
    return names.get(request_id, str(request_id))


def lanes(spans: Sequence[Wait]) -> int:
    """How many lanes the waits need."""
    return 1 + max((span.lane for span in spans), default=-1)
