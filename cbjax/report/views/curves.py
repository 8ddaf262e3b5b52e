"""Metrics against one setting, a line per variant: how a system goes from idle to overload."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

from cbjax.report.format import metric_title, setting_title, unit_of
from cbjax.report.lines import Line, lines_of
from cbjax.report.style import WIDE_RANGE, house_style, new_figure, safe

METRICS = (
    "output_tokens_per_s", "queue_s.p95", "ttft_s.p95",
    "itl_s.p95", "e2e_s.p95", "mean_running",
    "preemptions", "lost_fraction", "kv_utilisation",
)
COLUMNS = 3
MOST_TICKS = 9
OVERLOAD = 0.01
INCHES_PER_CHARACTER, INCHES_PER_HANDLE = 0.075, 0.65  # of a legend


def draw(
    rows: pl.DataFrame, folder: Path, *, x: str, metrics: Sequence[str] = METRICS
) -> Figure:
    """Draw metrics against a setting.

    A line per variant; several seeds are averaged. Where the queue grows without bound (more than
    1 % of the arrivals only lengthen it) markers are hollow: latencies there depend on how long the
    run was. A tick below a panel marks each line's knee, the load with the greatest throughput per
    second of latency (Kleinrock's power), if the setting is a load.

    Args:
        rows: from `collect_runs`.
        folder: of the study; not used.
        x: column of the setting, numbers.
        metrics: columns to draw; those that no run has, or all have as 0, are left out.

    Raises:
        ValueError: `x` is not a column of numbers.
    """
    lines = lines_of(rows, x)
    present = [name for name in metrics if any(np.any(line.values(name) > 0) for line in lines)]
    columns = min(len(present), COLUMNS)
    high = -(-len(present) // columns)
    with house_style():
        figure = new_figure(3.7 * columns, 2.5 * high + 0.5)
        panels = figure.subplots(high, columns, squeeze=False).flatten()
        for panel, name in zip(panels, present, strict=False):
            for line in lines:
                _draw_line(panel, line, name)
            _scale(panel, lines, name)
            panel.set_title(metric_title(name))
        for place, panel in enumerate(panels):
            if place >= len(present):
                panel.set_axis_off()
            elif place + columns >= len(present):
                panel.set_xlabel(safe(setting_title(x)))
        handles = panels[0].get_legend_handles_labels()[0][: len(lines)]
        longest = max(len(line.label) for line in lines)
        fitting = int(figure.get_figwidth() / (INCHES_PER_CHARACTER * longest + INCHES_PER_HANDLE))
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(len(lines), max(fitting, 1), 5)
        )
    return figure


def _draw_line(axis: Axes, line: Line, metric: str) -> None:
    values = unit_of(metric) * line.values(metric)
    over = line.values("queue_growth") > OVERLOAD
    axis.plot(line.at, values, **line.style, marker="", label=safe(line.label))
    for mask, filled in ((~over, True), (over, False)):
        axis.plot(
            line.at[mask], values[mask], "o", markersize=4.5, color=line.style["color"],
            markerfacecolor=line.style["color"] if filled else "white", linestyle="none",
        )
    knee = _knee(line)
    if knee is not None:
        axis.plot([knee], [0], "|", color=line.style["color"], markersize=12, markeredgewidth=2,
                  transform=axis.get_xaxis_transform(), clip_on=False)


def _knee(line: Line) -> float | None:
    """The load of the greatest power; None where the setting is no load or nothing was measured."""
    if not line.is_load:
        return None
    power = line.values("requests_per_s") / line.values("e2e_s.mean")
    return None if np.all(np.isnan(power)) else float(line.at[np.nanargmax(power)])


def _scale(axis: Axes, lines: Sequence[Line], metric: str) -> None:
    at = np.unique(np.concatenate([line.at for line in lines]))
    if len(at) > 1 and at[0] > 0 and at[-1] >= 8 * at[0]:
        axis.set_xscale("log")
        fixed = FixedLocator(list(at))
        axis.xaxis.set_major_locator(fixed if len(at) <= MOST_TICKS else LogLocator(subs=(1, 3)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axis.set_xlim(left=0)
    values = np.concatenate([line.values(metric) for line in lines])
    positive = values[values > 0]
    of_time = metric_title(metric).endswith(("(s)", "(ms)"))
    if of_time and len(positive) and positive.max() > WIDE_RANGE * positive.min():
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif len(positive):
        axis.set_ylim(0, 1.06 * unit_of(metric) * positive.max())
