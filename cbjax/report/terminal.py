"""A run drawn with characters, one per iteration: for examples small enough to read whole."""

from collections.abc import Iterator, Mapping
from typing import Literal

import polars as pl

from cbjax.metrics import Tables, outcome
from cbjax.report.spans import request_name

QUEUED, PREFILL, DECODE, HELD, PREEMPTED, AGAIN, IDLE = ".", "P", "D", "-", "!", "~", " "
KEY = (
    f"{QUEUED} queued   {PREFILL} prefill   {DECODE} decode   {HELD} seat held, not computed   "
    f"{PREEMPTED} preempted   {AGAIN} waiting after preemption"
)
SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
MOST_ITERATIONS = 400


def ascii_timeline(
    tables: Tables,
    names: Mapping[int, str] | None = None,
    rows: Literal["request", "seat"] = "request",
) -> str:
    """Draw a run in text.

    Args:
        tables: with a schedule, at most 400 iterations.
        names: request_id -> name.
        rows: "request": a line per request, a character says what it was doing. "seat": a line per
            seat, a character says which request computed there (the first letter of its name, if
            these differ), and below them how many requests waited.

    Returns:
        Lines with a ruler of iteration numbers above and a key below.

    Raises:
        ValueError: there is no schedule, or the run is too long to draw.
    """
    if tables.schedule is None:
        raise ValueError("this run has no schedule; record=iterations keeps it")
    count = len(tables.iterations)
    if count > MOST_ITERATIONS:
        raise ValueError(
            f"{count} iterations do not fit in text ({MOST_ITERATIONS} do); draw a figure instead"
        )
    named = names or {}
    lines = dict(_seat_lines(tables, named) if rows == "seat" else _request_lines(tables, named))
    width = max(len(label) for label in (*lines, "iteration"))
    ruler = "".join(f"{start:<10}" for start in range(0, count, 10))
    if count <= 10:
        ruler = SYMBOLS[:count]
    drawn = [f"{label:<{width}}  {line}".rstrip() for label, line in lines.items()]
    key = [KEY] if rows == "request" else []
    return "\n".join([f"{'iteration':<{width}}  {ruler}".rstrip(), *drawn, *key])


def _request_lines(tables: Tables, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    assert tables.schedule is not None
    starts = tables.iterations["start_s"].to_list()
    grouped = tables.schedule.group_by("request_id", maintain_order=True)
    by_request = {key[0]: rows for key, rows in grouped}
    for request in tables.requests.filter(outcome() != "refused").iter_rows(named=True):
        line = [QUEUED if request["scheduled_arrival_s"] <= start else IDLE for start in starts]
        rows = by_request.get(request["request_id"])
        for number, kind in () if rows is None else rows.select("iteration", "kind").iter_rows():
            preempted = kind == "preempted"
            line[number] = PREEMPTED if preempted else PREFILL if kind == "prefill" else DECODE
            rest = AGAIN if preempted else HELD
            line[number + 1 :] = [rest] * (len(line) - number - 1)
        # From here on the request has ended, whatever it was doing before.
        ended_s = request["finished_s"]
        last = -1 if rows is None else int(rows["iteration"].max())  # type: ignore[arg-type]
        line = [
            IDLE
            if number > last and ended_s is not None and _over(start, ended_s, line[number])
            else symbol
            for number, (start, symbol) in enumerate(zip(starts, line, strict=True))
        ]
        yield request_name(names, request["request_id"]), "".join(line)


def _over(start_s: float, ended_s: float, symbol: str) -> bool:
    """A finished request holds nothing; one that still waited is over once its end has come."""
    return symbol == HELD or start_s >= ended_s


def _seat_lines(tables: Tables, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    assert tables.schedule is not None
    count = len(tables.iterations)
    ids = tables.requests["request_id"].to_list()
    initials = [request_name(names, request_id)[:1] for request_id in ids]
    distinct = bool(names) and len(set(initials)) == len(ids)
    symbols = initials if distinct else [SYMBOLS[n % len(SYMBOLS)] for n in range(len(ids))]
    symbol_of = dict(zip(ids, symbols, strict=True))
    rows = tables.schedule.filter(pl.col("kind") != "preempted")
    seats = 0 if rows.is_empty() else int(rows["seat"].max()) + 1  # type: ignore[arg-type]
    for seat in range(seats):
        line = [IDLE] * count
        here = rows.filter(pl.col("seat") == seat).select("iteration", "request_id")
        for number, request_id in here.iter_rows():
            line[number] = symbol_of[request_id]
        yield f"seat {seat}", "".join(line)
    waiting = (tables.iterations["waiting"] + tables.iterations["backlog"]).to_list()
    yield "waiting", "".join("+" if n > 9 else str(n) if n else IDLE for n in waiting)
