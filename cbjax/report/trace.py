"""A run as a trace for Perfetto (ui.perfetto.dev) and Chrome (about:tracing).

The JSON "trace event" format: seats are threads of a process named after the run, iterations a
thread beside them, and running, waiting and free blocks are counters. Times are microseconds.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cbjax.report.spans import request_name, stays, waits
from cbjax.results import Run

US = 1e6
ITERATIONS_THREAD = 0
FIRST_SEAT_THREAD = 1
COUNTERS = ("running", "waiting", "free_blocks")


def write_trace(runs: Sequence[Run], path: Path) -> Path:
    """Write runs as one trace, a process each.

    Args:
        runs: with iterations and a schedule.
        path: a `.json` file; its folder is made if missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [event for number, run in enumerate(runs) for event in _events(run, number + 1)]
    trace = {"traceEvents": events, "displayTimeUnit": "ms"}
    path.write_text(json.dumps(trace, ensure_ascii=False), encoding="utf-8")
    return path


def _events(run: Run, process: int) -> Iterator[dict[str, Any]]:
    schedule = run.tables.schedule
    found = stays(schedule) if schedule is not None else []
    seats = 1 + max((stay.seat for stay in found), default=-1)
    yield _name("process_name", process, ITERATIONS_THREAD, run.label)
    yield _name("thread_name", process, ITERATIONS_THREAD, "iterations")
    for seat in range(seats):
        yield _name("thread_name", process, FIRST_SEAT_THREAD + seat, f"seat {seat}")
    for row in run.tables.iterations.iter_rows(named=True):
        label = row["rung"] or "iteration"
        details = ("iteration", "prefill_tokens", "decode_tokens", "padded_tokens", "limited_by")
        arguments = {name: row[name] for name in details}
        yield _span(process, ITERATIONS_THREAD, label, row, "iteration", arguments)
        for counter in COUNTERS:
            value = {counter: row[counter]}
            yield {
                "ph": "C",
                "name": counter,
                "pid": process,
                "ts": row["start_s"] * US,
                "args": value,
            }
    for row in schedule.iter_rows(named=True) if schedule is not None else ():
        name = request_name(run.names, row["request_id"])
        if row["kind"] == "preempted":
            if row["seat"] is not None:
                yield {
                    "ph": "i",
                    "name": f"{name} preempted",
                    "cat": "preempted",
                    "pid": process,
                    "tid": FIRST_SEAT_THREAD + row["seat"],
                    "ts": row["start_s"] * US,
                    "s": "t",
                }
            continue
        thread, arguments = FIRST_SEAT_THREAD + row["seat"], {"tokens": row["tokens"]}
        yield _span(process, thread, f"{name} {row['kind']}", row, row["kind"], arguments)
    # Waits overlap freely, which spans of one thread may not; async spans may.
    for number, wait in enumerate(waits(run.tables)):
        name = request_name(run.names, wait.request_id)
        kind = "waits after preemption" if wait.again else "queued"
        common = {
            "name": f"{name} {kind}",
            "cat": "waiting",
            "id": f"{process}.{number}",
            "pid": process,
            "tid": ITERATIONS_THREAD,
        }
        yield {"ph": "b", "ts": wait.start_s * US, **common}
        yield {"ph": "e", "ts": wait.end_s * US, **common}


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _span(
    process: int,
    thread: int,
    name: str,
    row: dict[str, Any],
    category: str,
    arguments: dict[str, Any],
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": row["start_s"] * US,
        "dur": row["duration_s"] * US,
        "args": arguments,
    }
