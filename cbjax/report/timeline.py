"""The request timeline: one lane per seat, and below them the requests that wait for one.

The picture of continuous batching. A seat's lane shows prefill chunks and decodes; where a request
holds the seat but computes nothing the lane is pale, and an empty lane is an idle seat.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cbjax.report.spans import Stay, Wait, Work, lanes, request_name, stays, waits, work
from cbjax.report.style import (
    GREY,
    LIGHT_GREY,
    ORANGE,
    PALE,
    SKY,
    VERMILION,
    house_style,
    new_figure,
    safe,
)
from cbjax.results import Run

WIDTH_IN = 11.0
DRAWN_IN = 0.93 * WIDTH_IN
SEAT_IN = 0.27
WAITING_IN = 0.13
MOST_WAITING_IN = 3.2
KIND_COLOURS = {"prefill": ORANGE, "decode": SKY}
AGAIN_COLOUR = "#F6C9AF"
LABEL_POINTS = 7.5
MOST_REQUESTS = 120
MOST_SEATS = 160


def has_schedule(run: Run) -> bool:
    """Whether it was recorded who computed what on which seat."""
    schedule = run.tables.schedule
    return not run.tables.requests.is_empty() and schedule is not None and not schedule.is_empty()


def with_timeline(runs: Sequence[Run]) -> list[Run]:
    """The runs with a schedule; none where their lanes together are too many to be read."""
    found = [run for run in runs if has_schedule(run)]
    # A lane per seat: the most requests that ran at once.
    lanes = sum(int(run.tables.iterations["running"].max() or 0) for run in found)  # type: ignore
    return found if lanes <= MOST_SEATS else []


def draw_begin(runs: Sequence[Run]) -> Figure:
    """Draw timelines up to the moment when 120 requests have ended, which can still be read."""
    moments = []
    for run in runs:
        if len(run.tables.requests) > MOST_REQUESTS:
            ends = run.tables.requests["finished_s"].drop_nulls().sort()
            moments.append(float(ends[min(MOST_REQUESTS, len(ends)) - 1]))
    return draw_timeline(runs, max(moments, default=None))


def draw_timeline(runs: Sequence[Run], until_s: float | None = None) -> Figure:
    """Draw the timelines of runs under one another, on one time axis.

    Args:
        runs: at least one; each needs its `schedule` table.
        until_s: draw only up to this moment; the title says so.

    Returns:
        The figure.

    Raises:
        ValueError: a run has no schedule.
    """
    for run in runs:
        if not has_schedule(run):
            raise ValueError(f"run {run.label!r} has no schedule; record=iterations keeps it")
    spans = [_spans(run) for run in runs]
    end_s = max(max(stay.end_s for stay in found[0]) for found in spans)
    shown_s = min(end_s, until_s or end_s)
    heights = [_height_in(found[0], found[2]) for found in spans]
    with house_style():
        figure = new_figure(WIDTH_IN, sum(heights) + 0.42 * len(runs) + 0.85)
        axes = figure.subplots(
            len(runs), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        scale, unit = (1000.0, "ms") if shown_s < 1.0 else (1.0, "s")
        for axis, run, found in zip(axes, runs, spans, strict=True):
            _draw(axis, run, *found, shown_s=shown_s, scale=scale)
            cut = f" (the first {shown_s:.3g} s of {end_s:.3g} s)" if shown_s < end_s else ""
            axis.set_title(safe(run.label) + cut)
        axes[-1].set_xlabel(f"time since the start ({unit})")
        axes[-1].set_xlim(0, shown_s * scale * 1.005)
        figure.legend(handles=_legend(spans), loc="outside lower center", ncols=6)
    return figure


def _spans(run: Run) -> tuple[list[Stay], list[Work], list[Wait]]:
    assert run.tables.schedule is not None
    return stays(run.tables.schedule), work(run.tables.schedule), waits(run.tables)


def _seats(found: Sequence[Stay]) -> int:
    return 1 + max(stay.seat for stay in found)


def _waiting_lane_in(waiting: Sequence[Wait]) -> float:
    """Inches per waiting lane: many lanes share a limited height and lose their labels."""
    return min(WAITING_IN, MOST_WAITING_IN / max(lanes(waiting), 1))


def _height_in(found: Sequence[Stay], waiting: Sequence[Wait]) -> float:
    return SEAT_IN * _seats(found) + _waiting_lane_in(waiting) * (lanes(waiting) + 1)


def _draw(
    axis: Axes,
    run: Run,
    held: Sequence[Stay],
    computed: Sequence[Work],
    waiting: Sequence[Wait],
    *,
    shown_s: float,
    scale: float,
) -> None:
    seats = _seats(held)
    lane = _waiting_lane_in(waiting) / SEAT_IN

    def label(span: Stay | Work | Wait, y: float, points: float) -> bool:
        name = safe(request_name(run.names, span.request_id))
        width_s = min(span.end_s, shown_s) - span.start_s
        fits = width_s / shown_s * DRAWN_IN * 72 > points * (0.62 * len(name) + 0.6)
        if fits:
            x = (span.start_s + width_s / 2) * scale
            axis.text(x, y, name, ha="center", va="center", fontsize=points, clip_on=True)
        return fits

    def bars(spans: Iterable[Stay | Work | Wait], middle: float, height: float, **look) -> None:
        extents = [(span.start_s * scale, (span.end_s - span.start_s) * scale) for span in spans]
        axis.broken_barh(extents, (middle - 0.42 * height, 0.84 * height), **look)

    for seat, stays_there in groupby(sorted(held, key=attrgetter("seat")), attrgetter("seat")):
        bars(stays_there, seat, 1, facecolor=PALE, edgecolor=LIGHT_GREY, linewidth=0.5)
    place = attrgetter("seat", "kind")
    for (seat, kind), works in groupby(sorted(computed, key=place), place):
        bars(works, seat, 1, facecolor=KIND_COLOURS[kind], edgecolor="white", linewidth=0.5)
    for stay in held:
        # A dark edge between two requests on one seat, or a mark where a request lost it.
        colour, width = (VERMILION, 2.5) if stay.preempted else (GREY, 1.0)
        ends = (stay.seat - 0.42, stay.seat + 0.42)
        axis.vlines(stay.end_s * scale, *ends, color=colour, linewidth=width)
    for stay, widest in _widest(held, computed):
        label(widest, stay.seat, LABEL_POINTS) or label(stay, stay.seat, LABEL_POINTS)

    top = seats - 0.5 + lane * 0.5
    for wait in waiting:
        middle = top + lane * (wait.lane + 0.5)
        bars([wait], middle, lane, facecolor=AGAIN_COLOUR if wait.again else LIGHT_GREY)
        if lane * SEAT_IN >= WAITING_IN:
            label(wait, middle, LABEL_POINTS - 1.0)

    count = lanes(waiting)
    ticks, texts = [float(seat) for seat in range(seats)], [f"seat {n}" for n in range(seats)]
    if count:
        ticks.append(top + lane * count / 2)
        texts.append("waiting")
    axis.set_yticks(ticks, texts)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(top + lane * (count + 0.2), -0.6)
    axis.grid(axis="y", visible=False)


def _widest(held: Sequence[Stay], computed: Sequence[Work]) -> Iterator[tuple[Stay, Work]]:
    """Every stay with its longest piece of work, where its label stands if it fits."""
    pieces: dict[tuple[int, int], list[Work]] = {}
    for piece in computed:
        pieces.setdefault((piece.request_id, piece.seat), []).append(piece)
    for stay in held:
        inside = [
            piece
            for piece in pieces.get((stay.request_id, stay.seat), ())
            if stay.start_s <= piece.start_s and piece.end_s <= stay.end_s
        ]
        if inside:
            yield stay, max(inside, key=lambda piece: piece.end_s - piece.start_s)


def _legend(spans: Sequence[tuple[list[Stay], list[Work], list[Wait]]]) -> list[Patch]:
    stayed = [stay for held, _, _ in spans for stay in held]
    worked_s = sum(piece.end_s - piece.start_s for _, done, _ in spans for piece in done)
    held_s = sum(stay.end_s - stay.start_s for stay in stayed)
    preempted = any(stay.preempted for stay in stayed)
    waiting = any(found for _, _, found in spans)
    pale = held_s > worked_s * 1.02
    entries: list[tuple[bool, dict[str, Any]]] = [
        (True, {"facecolor": ORANGE, "label": "prefill chunk"}),
        (True, {"facecolor": SKY, "label": "decode"}),
        (pale, {"facecolor": PALE, "edgecolor": LIGHT_GREY, "label": "seat held, not computed"}),
        (waiting, {"facecolor": LIGHT_GREY, "label": "queued"}),
        (preempted, {"facecolor": VERMILION, "label": "preempted here"}),
        (preempted, {"facecolor": AGAIN_COLOUR, "label": "waiting after preemption"}),
    ]
    return [Patch(**look) for shown, look in entries if shown]
