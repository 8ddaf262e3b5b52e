"""A sweep over two settings as heat maps, one per metric, with the numbers written in."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbjax.report.format import SETTING_TITLES, metric_title, number, setting_title
from cbjax.report.style import GREY, house_style, new_figure, safe

METRICS = (
    "output_tokens_per_s",
    "ttft_s.p95",
    "itl_s.p95",
    "padding_fraction",
    "kv_utilisation",
    "preemptions",
)


def draw_grid(table: pl.DataFrame, x: str, y: str, metrics: Sequence[str] = METRICS) -> Figure:
    """Draw metrics over a grid of two settings.

    Args:
        table: from `collect_runs`: one row per run. Several runs of a cell (seeds) are averaged.
        x: column of the setting along the horizontal axis, e.g. "kv.block_size".
        y: column of the setting along the vertical axis.
        metrics: columns to draw, one panel each; those that no run has are left out.

    Raises:
        ValueError: a setting is not a column of the table, or no metric is.
    """
    for setting in (x, y):
        if setting not in table.columns:
            raise ValueError(f"{setting!r} is not a setting of these runs; see the table's columns")
    present = [name for name in metrics if name in table.columns and table[name].count()]
    if not present:
        raise ValueError(f"none of the metrics {', '.join(metrics)} was measured in these runs")
    columns = min(len(present), 3)
    lines = -(-len(present) // columns)
    with house_style():
        wide = max(0.62 * table[x].n_unique(), 2.6)
        high = max(0.46 * table[y].n_unique(), 1.5)
        figure = new_figure((wide + 1.1) * columns, (high + 1.0) * lines)
        panels = figure.subplots(lines, columns, squeeze=False).flatten()
        for panel, name in zip(panels, present, strict=False):
            _draw(panel, table, x, y, name)
        for panel in panels[len(present) :]:
            panel.set_axis_off()
        for place, panel in enumerate(panels[: len(present)]):
            if place % columns == 0:
                panel.set_ylabel(safe(setting_title(y)))
            if place + columns >= len(present):
                panel.set_xlabel(safe(setting_title(x)))
    return figure


def grid_axes(table: pl.DataFrame, swept: Sequence[str]) -> list[str]:
    """The settings a sweep really varies, one per independent axis.

    Settings that move together (a budget and its alias, a block size and the number of blocks that
    keeps memory equal) are one axis, named by the best-known of them.

    Args:
        table: from `collect_runs`.
        swept: names of settings that differ between runs.

    Returns:
        Column names in the order of `swept`. They span a full grid if the product of their values'
        numbers is the number of distinct combinations, see `is_full_grid`.
    """
    axes: dict[tuple[int, ...], str] = {}
    for name in swept:
        if name not in table.columns or table[name].n_unique() < 2:
            continue
        # Two columns that split the runs into the same groups are the same axis.
        values = table[name].to_list()
        groups = tuple(values.index(value) for value in values)
        known = name in SETTING_TITLES and axes.get(groups) not in SETTING_TITLES
        # A knob that only some policies have is no name for the axis of the policies.
        if groups not in axes or (known and not table[name].null_count()):
            axes[groups] = name
    return list(axes.values())


def is_full_grid(table: pl.DataFrame, axes: Sequence[str]) -> bool:
    """Whether two axes were swept against each other completely."""
    if len(axes) != 2 or any(table[name].null_count() for name in axes):
        return False
    first, second = axes
    combinations = table.select(axes).n_unique()
    return combinations == table[first].n_unique() * table[second].n_unique()


def _draw(axis: Axes, table: pl.DataFrame, x: str, y: str, metric: str) -> None:
    means = table.group_by(x, y).agg(pl.col(metric).mean())
    places: dict[str, list[Any]] = {
        setting: sorted(table[setting].drop_nulls().unique().to_list()) for setting in (x, y)
    }
    values = np.full((len(places[y]), len(places[x])), np.nan)
    for at_x, at_y, value in means.iter_rows():
        if value is not None and at_x is not None and at_y is not None:
            values[places[y].index(at_y), places[x].index(at_x)] = value
    image = axis.imshow(values, cmap="cividis", aspect="auto", origin="lower")
    low, high = np.nanmin(values), np.nanmax(values)
    for (row, column), value in np.ndenumerate(values):
        dark = high > low and value < (low + high) / 2
        text = "–" if np.isnan(value) else number(float(value), metric)
        colour = GREY if np.isnan(value) else "white" if dark or high == low else "black"
        axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    axis.set_xticks(range(len(places[x])), [safe(str(value)) for value in places[x]])
    axis.set_yticks(range(len(places[y])), [safe(str(value)) for value in places[y]])
    axis.set_title(metric_title(metric))
    # Thin white lines between the cells, drawn as the grid of the minor ticks.
    axis.set_xticks([place - 0.5 for place in range(1, len(places[x]))], minor=True)
    axis.set_yticks([place - 0.5 for place in range(1, len(places[y]))], minor=True)
    axis.set_axisbelow(False)
    axis.grid(visible=False, which="major")
    axis.grid(which="minor", color="white", linewidth=1.5)
    axis.tick_params(which="both", length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    image.set_clim(low, high if high > low else low + 1)
