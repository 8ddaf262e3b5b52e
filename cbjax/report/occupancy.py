"""Who was in the system over time: running and waiting requests, and the KV blocks they held."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cbjax.report.style import BLUE, GREEN, GREY, ORANGE, VERMILION, house_style, new_figure, safe
from cbjax.results import Run

MOST_COLUMNS = 3


def draw_occupancy(runs: Sequence[Run]) -> Figure:
    """Draw running and waiting requests, and used KV blocks, against time.

    One pair of panels per run; all pairs share their axes, so that runs can be compared. Triangles
    on the line of the pool mark iterations in which a request was preempted.

    Args:
        runs: at least one, with iteration tables.

    Raises:
        ValueError: a run has no iterations.
    """
    for run in runs:
        if run.tables.iterations.is_empty():
            raise ValueError(f"run {run.label!r} has no iterations; record=iterations keeps them")
    columns = min(len(runs), MOST_COLUMNS)
    lines = -(-len(runs) // columns)
    with house_style():
        figure = new_figure(3.67 * columns + (2.0 if columns < 3 else 0.0), 4.3 * lines + 0.4)
        grid = figure.subplots(2 * lines, columns, sharex=True, sharey=False, squeeze=False)
        for index in range(lines * columns):
            line, column = divmod(index, columns)
            upper, lower = grid[2 * line, column], grid[2 * line + 1, column]
            if index >= len(runs):
                upper.set_axis_off()
                lower.set_axis_off()
                continue
            _draw(upper, lower, runs[index])
            if column == 0:
                upper.set_ylabel("requests")
                lower.set_ylabel("KV blocks")
            # A pair above an empty place is the lowest of its column and needs its own labels.
            if index + columns >= len(runs):
                lower.set_xlabel("time since the start (s)")
                lower.tick_params(labelbottom=True)
        shown = [divmod(index, columns) for index in range(len(runs))]
        for offset in (0, 1):
            axes = [grid[2 * line + offset, column] for line, column in shown]
            top = max(axis.get_ylim()[1] for axis in axes)
            for axis in axes:
                axis.set_ylim(-0.03 * top, 1.03 * top)
        entries = {
            label: handle
            for axis in grid.flat
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles=list(entries.values()), loc="outside lower center", ncols=6)
    return figure


def _draw(upper: Axes, lower: Axes, run: Run) -> None:
    rows = run.tables.iterations
    start_s = rows["start_s"].to_numpy()
    # The last iteration is drawn to its end.
    edges = np.append(start_s, start_s[-1] + rows["duration_s"][-1])
    waiting = rows["waiting"] + rows["backlog"]
    upper.step(edges, _held(rows["running"]), where="post", color=BLUE, label="running")
    upper.step(edges, _held(waiting), where="post", color=ORANGE, label="waiting")
    used = rows["used_blocks"].to_numpy()
    pool = float((used + rows["free_blocks"].to_numpy()).max())
    held = _held(rows["used_blocks"])
    lower.fill_between(edges, held, step="post", color=GREEN, alpha=0.25, linewidth=0)
    lower.step(edges, held, where="post", color=GREEN, label="used blocks")
    lower.axhline(pool, color=GREY, linestyle="--", linewidth=1.2, label="pool")
    hit = rows["preempted"].to_numpy() > 0
    if hit.any():
        level = [pool] * int(hit.sum())
        lower.plot(start_s[hit], level, "v", color=VERMILION, markersize=6, label="preemption")
    upper.set_title(safe(run.label))
    for axis in (upper, lower):
        axis.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _held(values: pl.Series) -> np.ndarray:
    return np.append(values.to_numpy(), values[-1])
