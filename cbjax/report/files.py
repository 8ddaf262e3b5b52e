"""Everything that can be drawn from the files of a run or a study, into its `figures/` folder."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure
from rich.console import Group, RenderableType

from cbjax.report.by_run import draw_by_run
from cbjax.report.capacity import capacity_table
from cbjax.report.distributions import draw_latencies
from cbjax.report.gaps import draw_gaps, has_gaps
from cbjax.report.grid import draw_grid, grid_axes, is_full_grid
from cbjax.report.occupancy import draw_occupancy
from cbjax.report.padding import draw_padding
from cbjax.report.style import save
from cbjax.report.tables import comparison_table, plain_text, study_table, sweep_table
from cbjax.report.timeline import draw_timeline
from cbjax.report.trace import write_trace
from cbjax.report.views import get as get_view
from cbjax.report.views import tables as view_tables
from cbjax.results import (
    Run,
    collect_runs,
    has_capacity,
    is_run,
    is_study,
    read_capacity,
    read_run,
)

MOST_DRAWN = 16
MOST_LINES = 24
MOST_TIMELINE_REQUESTS = 120
MOST_TIMELINE_SEATS = 160

FIGURES: dict[str, Callable[[Sequence[Run]], Figure]] = {
    "latencies": draw_latencies,
    "occupancy": draw_occupancy,
    "padding": draw_padding,
}


class NotDrawable(ValueError):
    """The folder holds neither a run nor a study."""


def redraw(folder: str | Path) -> tuple[RenderableType, list[Path]]:
    """Redraw a run or a study from its files.

    Args:
        folder: of a finished run, or of a study (finished, or indexed and about to be). The runs of
            a study are redrawn if they had figures of their own.

    Returns:
        The table to show and the files written.

    Raises:
        NotDrawable: the folder is neither.
    """
    folder = Path(folder)
    if is_run(folder):
        run = read_run(folder)
        return comparison_table([run]), draw_runs([run], folder / "figures")
    if not is_study(folder):
        raise NotDrawable(
            f"{folder} is neither a study (no study.json) nor a run (no summary.json); give "
            "results/<experiment>/<study hash> or a folder under its runs/"
        )
    table, written = draw_study(folder)
    for figures in sorted(folder.glob("runs/*/figures")):
        written += draw_runs([read_run(figures.parent)], figures)
    return table, written


def draw_study(folder: str | Path) -> tuple[RenderableType, list[Path]]:
    """Draw a study: grids if it sweeps two settings, else its runs beside one another.

    Returns:
        The comparison table and the files written, those of the single runs not included.
    """
    folder = Path(folder)
    index = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    figures, title, names = folder / "figures", index["experiment"], index["runs"]
    figures.mkdir(exist_ok=True)
    rows = collect_runs(folder).filter(pl.col("error").is_null())
    axes = grid_axes(rows, index["swept"])
    table: RenderableType
    if is_full_grid(rows, axes):
        y, x = axes
        table = sweep_table(rows, axes, title=title)
        written = [save(draw_grid(rows, x, y), figures / "grid.png")]
    else:
        runs = [read_run(folder / "runs" / name) for name in names]
        table = study_table(rows, runs, axes, title)
        written = draw_runs(runs, figures) if len(runs) <= MOST_DRAWN else []
        if 1 < len(runs) <= MOST_LINES:
            written.append(save(draw_by_run(rows), figures / "by_run.png"))
    if has_capacity(folder):
        table = capacity_table(read_capacity(folder), title)
    views = index.get("views", {})
    table = Group(table, *view_tables(views, rows, folder))
    for name, options in views.items():
        written.append(save(get_view(name)(rows, folder, **options), figures / f"{name}.png"))
    text = figures / "comparison.txt"
    text.write_text(plain_text(table), encoding="utf-8")
    return table, [text, *written]


def draw_runs(runs: Sequence[Run], figures: Path) -> list[Path]:
    """Draw runs beside one another: timeline, latencies, gaps, occupancy, padding, and the trace.

    What was not recorded cannot be drawn: runs without iterations give latencies only, runs
    without requests nothing. A timeline of more than 160 seats is too long to be read.
    """
    with_requests = [run for run in runs if len(run.tables.requests)]
    with_iterations = [run for run in with_requests if len(run.tables.iterations)]
    scheduled = [
        run
        for run in with_iterations
        if run.tables.schedule is not None and len(run.tables.schedule)
    ]
    written = []
    if scheduled and _seats(scheduled) <= MOST_TIMELINE_SEATS:
        until_s = _legible_s(scheduled)
        written.append(save(draw_timeline(scheduled, until_s), figures / "timeline.png"))
    for name, figure in FIGURES.items():
        drawable = with_requests if name == "latencies" else with_iterations
        if drawable:
            written.append(save(figure(drawable), figures / f"{name}.png"))
    streamed = [run for run in with_requests if has_gaps(run)]
    if streamed:
        written.append(save(draw_gaps(streamed), figures / "gaps.png"))
    if scheduled:
        written.append(write_trace(scheduled, figures / "trace.json"))
    return written


def _seats(runs: Sequence[Run]) -> int:
    """Lanes of a timeline: the most requests that ran at once, over all runs."""
    return sum(int(run.tables.iterations["running"].max() or 0) for run in runs)  # type: ignore


def _legible_s(runs: Sequence[Run]) -> float | None:
    """The moment up to which a timeline has few enough requests to be read; None: all of it."""
    moments = []
    for run in runs:
        arrivals = run.tables.requests["scheduled_arrival_s"].sort()
        if len(arrivals) > MOST_TIMELINE_REQUESTS:
            ends = run.tables.requests["finished_s"].drop_nulls().sort()
            moments.append(float(ends[min(MOST_TIMELINE_REQUESTS, len(ends)) - 1]))
    return max(moments, default=None)
