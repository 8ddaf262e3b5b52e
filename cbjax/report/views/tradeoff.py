"""Two metrics against each other over one setting, and the settings that nothing beats in both."""

from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbjax.report.format import metric_title, setting_title, unit_of
from cbjax.report.lines import lines_of
from cbjax.report.style import BLACK, WIDE_RANGE, house_style, new_figure, safe


def draw(
    rows: pl.DataFrame, folder: Path, *, along: str, x: str = "ttft_s.p95", y: str = "itl_s.p99"
) -> Figure:
    """Draw a trade-off: a line per variant through its settings, the Pareto set in rings.

    Args:
        rows: from `collect_runs`.
        folder: of the study; not used.
        along: column of the setting that moves a point along its line; written beside the points.
        x, y: columns of two metrics of which less is better.

    Raises:
        ValueError: `along` is no column of numbers.
    """
    lines = lines_of(rows, along)
    xs = [line.values(x) * unit_of(x) for line in lines]
    ys = [line.values(y) * unit_of(y) for line in lines]
    best = pareto(np.concatenate(xs), np.concatenate(ys))
    with house_style():
        figure = new_figure(6.4, 4.6)
        axis = figure.subplots()
        for line, across, up in zip(lines, xs, ys, strict=True):
            axis.plot(across, up, **line.style, marker="o", markersize=4.5, label=safe(line.label))
            for value, left, height in zip(line.at, across, up, strict=True):
                axis.annotate(f"{value:g}", (left, height), xytext=(5, 4), fontsize=7.5,
                              textcoords="offset points", color=line.style["color"])
        across, up = np.concatenate(xs)[best], np.concatenate(ys)[best]
        axis.scatter(across, up, s=90, facecolors="none", edgecolors=BLACK, linewidths=1.0,
                     label="no setting is better in both")
        for scale, values in ((axis.set_xscale, xs), (axis.set_yscale, ys)):
            _scale(scale, np.concatenate(values))
        _plain_numbers(axis)
        axis.set_xlabel(metric_title(x))
        axis.set_ylabel(metric_title(y))
        axis.set_title(safe(f"along each line: {setting_title(along)}"))
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def pareto(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the points that no other beats in both (less is better), by ascending x.

    Of equal points all are kept; points with a missing value never are.
    """
    order = [place for place in np.lexsort((y, x)) if not np.isnan(x[place] + y[place])]
    kept: list[int] = []
    for place in order:
        beaten = any(
            x[other] <= x[place] and y[other] <= y[place]
            and (x[other] < x[place] or y[other] < y[place])
            for other in kept
        )
        if not beaten:
            kept.append(int(place))
    return np.array(kept, int)


def _scale(set_scale, values: np.ndarray) -> None:
    positive = values[values > 0]
    if len(positive) and positive.max() > WIDE_RANGE * positive.min():
        set_scale("log")


def _plain_numbers(axis: Axes) -> None:
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_formatter(lambda value, _: f"{value:g}")
