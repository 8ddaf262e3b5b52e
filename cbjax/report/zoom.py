"""What happened in every iteration and on every seat, as plain data for a page to zoom into."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from cbjax.report.spans import lanes, request_name, stays, waits, work
from cbjax.report.style import GREY, LIGHT_GREY, ORANGE, PALE, SKY, VERMILION
from cbjax.report.timeline import AGAIN_COLOUR, has_schedule
from cbjax.results import Run

MOST_ITERATIONS = 12_000
DECIMALS = 6
COLOURS = {
    "prefill": ORANGE, "decode": SKY, "padding": LIGHT_GREY, "held": PALE, "queued": LIGHT_GREY,
    "again": AGAIN_COLOUR, "preempted": VERMILION, "edge": GREY,
}
ITERATION = (
    "start_s", "duration_s", "prefill_tokens", "decode_tokens", "padded_tokens", "running",
    "waiting", "limited_by",
)


def zoomable(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The iterations and spans of runs, seconds throughout, ready for JSON.

    Args:
        runs: those without a schedule are left out. Of long ones as many iterations are kept as
            12,000 in all allow; `cut_s` says up to when.

    Returns:
        The colours and a timeline per run; None where no run has a schedule.
    """
    shown = [run for run in runs if has_schedule(run)]
    if not shown:
        return None
    most = max(MOST_ITERATIONS // len(shown), 1)
    return {"colours": COLOURS, "runs": [_timeline(run, most) for run in shown]}


def _timeline(run: Run, most: int) -> dict[str, Any]:
    assert run.tables.schedule is not None
    rows = run.tables.iterations
    cut_s = float(rows["start_s"][most]) if len(rows) > most else None
    until_s = float("inf") if cut_s is None else cut_s
    kept = rows.filter(pl.col("start_s") < until_s)
    held, waiting = stays(run.tables.schedule), waits(run.tables)

    def name(request_id: int) -> str:
        return request_name(run.names, request_id)

    def times(span: Any) -> tuple[float, float]:
        return round(span.start_s, DECIMALS), round(min(span.end_s, until_s), DECIMALS)

    spans = [
        [*times(one), one.seat, "held", name(one.request_id), 0, one.preempted]
        for one in held if one.start_s < until_s
    ]
    spans += [
        [*times(one), one.seat, one.kind, name(one.request_id), one.tokens, False]
        for one in work(run.tables.schedule) if one.start_s < until_s
    ]
    waited = [
        [*times(one), one.lane, "again" if one.again else "queued", name(one.request_id)]
        for one in waiting if one.start_s < until_s
    ]
    ends = kept.select((pl.col("start_s") + pl.col("duration_s")).max()).item()
    return {
        "label": run.label, "seats": 1 + max(one.seat for one in held), "lanes": lanes(waiting),
        "end_s": float(ends), "cut_s": cut_s,
        "iterations": [
            [round(value, DECIMALS) if isinstance(value, float) else value for value in row]
            for row in kept.select(ITERATION).iter_rows()
        ],
        "spans": spans, "waits": waited,
    }
