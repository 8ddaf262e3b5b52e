"""Everything that can be drawn from the files of a run or a study, into its `figures/` folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from rich.console import Group, RenderableType

from cbjax.report.by_run import draw_by_run
from cbjax.report.capacity import capacity_table
from cbjax.report.distributions import draw_latencies
from cbjax.report.gaps import draw_gaps, has_gaps
from cbjax.report.grid import draw_grid, grid_axes, is_full_grid
from cbjax.report.html import write_report
from cbjax.report.occupancy import draw_occupancy
from cbjax.report.padding import draw_padding
from cbjax.report.paired import paired_differences, paired_tables
from cbjax.report.style import FORMATS, save_as
from cbjax.report.tables import comparison_table, plain_text, study_table, sweep_table
from cbjax.report.timeline import draw_begin, has_schedule, with_timeline
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
MOST_DIFFERENCES = 60


@dataclass(frozen=True)
class RunFigure:
    """A figure of runs beside one another: which of them it can show, and what draws those."""

    of: Callable[[Sequence[Run]], Sequence[Run]]
    draw: Callable[[Sequence[Run]], Figure]


def _each(can: Callable[[Run], bool]) -> Callable[[Sequence[Run]], list[Run]]:
    return lambda runs: [run for run in runs if can(run)]


def _has_requests(run: Run) -> bool:
    return not run.tables.requests.is_empty()


def _has_iterations(run: Run) -> bool:
    return _has_requests(run) and not run.tables.iterations.is_empty()


FIGURES = {
    "timeline": RunFigure(with_timeline, draw_begin),
    "latencies": RunFigure(_each(_has_requests), draw_latencies),
    "occupancy": RunFigure(_each(_has_iterations), draw_occupancy),
    "padding": RunFigure(_each(_has_iterations), draw_padding),
    "gaps": RunFigure(_each(has_gaps), draw_gaps),
}


class NotDrawable(ValueError):
    """The folder holds neither a run nor a study."""


def redraw(
    folder: str | Path, formats: Sequence[str] = FORMATS
) -> tuple[RenderableType, list[Path]]:
    """Redraw a run or a study from its files.

    Args:
        folder: of a finished run, or of a study (finished, or indexed and about to be). The runs of
            a study are redrawn if they had figures of their own.
        formats: of the figures: png, svg, pdf; png is always among them, as the report shows it.

    Returns:
        The table to show and the files written, the HTML report first.

    Raises:
        NotDrawable: the folder is neither.
    """
    folder, formats = Path(folder), list(dict.fromkeys((*FORMATS, *formats)))
    if is_run(folder):
        alone = _Read(folder, collect_runs(folder), (read_run(folder),), {})
        table: RenderableType = comparison_table(alone.runs)
        written = draw_runs(alone.runs, folder / "figures", formats)
        return table, [_write_report(alone, table, written), *written]
    if not is_study(folder):
        raise NotDrawable(
            f"{folder} is neither a study (no study.json) nor a run (no summary.json); give "
            "results/<experiment>/<study hash> or a folder under its runs/"
        )
    study = _read(folder)
    table, written = _draw_study(study, formats)
    report = _write_report(study, table, written)
    known = {run.folder: run for run in study.whole}
    for figures in sorted(folder.glob("runs/*/figures")):
        run = known.get(figures.parent) or read_run(figures.parent)
        written += draw_runs([run], figures, formats)
    return table, [report, *written]


def draw_study(
    folder: str | Path, formats: Sequence[str] = FORMATS
) -> tuple[RenderableType, list[Path]]:
    """Draw a study: grids if it sweeps two settings, else its runs beside one another.

    Returns:
        The comparison table and the files written, those of the single runs not included.
    """
    return _draw_study(_read(Path(folder)), formats)


@dataclass(frozen=True)
class _Read:
    """A run or a study as its files have it, read once.

    Of many runs the tables are left out, which would fill the memory.
    """

    folder: Path
    rows: pl.DataFrame
    runs: Sequence[Run]
    index: Mapping[str, Any]  # study.json; empty for a single run

    @property
    def whole(self) -> Sequence[Run]:
        """The runs if they have their tables, else none."""
        return self.runs if len(self.runs) <= MOST_DRAWN else ()


def _read(folder: Path) -> _Read:
    index = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    names = index["runs"]
    runs = (read_run(folder / "runs" / name) for name in names)
    if len(names) > MOST_DRAWN:
        runs = (replace(run, tables=run.tables.at_level("summary")) for run in runs)
    return _Read(folder, collect_runs(folder), list(runs), index)


def _draw_study(study: _Read, formats: Sequence[str]) -> tuple[RenderableType, list[Path]]:
    folder, index, runs = study.folder, study.index, study.runs
    figures, title = folder / "figures", index["experiment"]
    figures.mkdir(exist_ok=True)
    rows = study.rows.filter(pl.col("error").is_null())
    axes = grid_axes(rows, index["swept"])
    table: RenderableType
    if is_full_grid(rows, axes):
        y, x = axes
        repeated = ["seed"] if rows["seed"].n_unique() > 1 else []
        table = sweep_table(rows, [*axes, *repeated], title=title)
        written = save_as(draw_grid(rows, x, y), figures / "grid", formats)
    else:
        table = study_table(rows, runs, axes, title)
        written = draw_runs(study.whole, figures, formats)
        if 1 < len(runs) <= MOST_LINES:
            written += save_as(draw_by_run(rows), figures / "by_run", formats)
    if has_capacity(folder):
        table = capacity_table(read_capacity(folder), title)
    else:
        # A search tries every setting at loads of its own: nothing to pair.
        differences = paired_differences(rows, study.whole)
        table = Group(table, *paired_tables(differences, MOST_DIFFERENCES))
    views = index.get("views", {})
    table = Group(table, *view_tables(views, rows, folder))
    for name, options in views.items():
        written += save_as(get_view(name)(rows, folder, **options), figures / name, formats)
    text = figures / "comparison.txt"
    text.write_text(plain_text(table), encoding="utf-8")
    return table, [text, *written]


def draw_runs(
    runs: Sequence[Run], figures: Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw runs beside one another: timeline, latencies, gaps, occupancy, padding, and the trace.

    What was not recorded cannot be drawn: runs without iterations give latencies only, runs
    without requests nothing. A timeline of more than 160 seats is too long to be read.
    """
    written = []
    for name, figure in FIGURES.items():
        shown = figure.of(runs)
        if shown:
            written += save_as(figure.draw(shown), figures / name, formats)
    scheduled = [run for run in runs if has_schedule(run)]
    if scheduled:
        written.append(write_trace(scheduled, figures / "trace.json"))
    return written


def _write_report(read: _Read, table: RenderableType, written: Sequence[Path]) -> Path:
    failed = read.rows.filter(pl.col("error").is_not_null())
    differing = read.rows.filter("differs")
    return write_report(
        read.folder, runs=read.runs, table=table, index=read.index,
        figures={path: _drawn_by(path.stem) for path in written if path.suffix == ".png"},
        differing=dict(differing.select("label", "differing_keys").iter_rows()),
        failed=dict(failed.select("label", "error").iter_rows()),
    )


def _drawn_by(name: str) -> Callable[..., Figure]:
    """The function that draws a figure of this name."""
    of_study: dict[str, Callable[..., Figure]] = {"grid": draw_grid, "by_run": draw_by_run}
    if name in FIGURES:
        return FIGURES[name].draw
    return of_study.get(name) or get_view(name)
