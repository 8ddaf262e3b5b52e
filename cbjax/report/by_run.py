"""Runs beside one another, a line each: latencies as percentiles, the rest as bars."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cbjax.report.format import PERCENT, metric_title
from cbjax.report.style import (
    BLACK,
    GREY,
    house_style,
    new_figure,
    policy_colour,
    safe,
    scale_latency,
)

LATENCIES = (("ttft_s", "TTFT (s)"), ("itl_s", "ITL (s)"), ("e2e_s", "E2E latency (s)"))
PERCENTILES = (("p50", "o", "white"), ("p95", "o", None), ("p99", "|", BLACK))
BARS = (
    "output_tokens_per_s",
    "mean_running",
    "kv_utilisation",
    "padding_fraction",
    "preemptions",
    "recomputed_tokens",
)
COLUMNS = 3


def draw_by_run(rows: pl.DataFrame) -> Figure:
    """Draw TTFT, ITL and end-to-end latency (p50, p95, p99), throughput, batch, KV and padding.

    Every run is a line, in the order of the table; panels that no run has a value for, or all have
    0, are left out. Latency axes are logarithmic where values span more than a factor of 30.

    Args:
        rows: from `collect_runs`: one row per run.
    """
    latencies = [one for one in LATENCIES if _any(rows, f"{one[0]}.p50")]
    bars = [name for name in BARS if _any(rows, name)]
    colours = [policy_colour(policy) for policy in rows["policy"]]
    panels = len(latencies) + len(bars)
    lines = -(-panels // COLUMNS)
    with house_style():
        figure = new_figure(11.0, (0.24 * len(rows) + 0.75) * lines + 0.3)
        axes = figure.subplots(lines, COLUMNS, sharey=True, squeeze=False).flatten()
        for axis, (name, title) in zip(axes, latencies, strict=False):
            _draw_latency(axis, rows, name, colours)
            axis.set_title(title)
        for axis, name in zip(axes[len(latencies) :], bars, strict=False):
            _draw_bars(axis, rows, name, colours)
            axis.set_title(metric_title(name))
        for axis in axes[panels:]:
            axis.set_axis_off()
        axes[0].set_yticks(range(len(rows)), [safe(label) for label in rows["label"]])
        axes[0].set_ylim(len(rows) - 0.5, -0.5)
        if latencies:
            handles = axes[0].get_legend_handles_labels()[0]
            figure.legend(handles=handles[:3], loc="outside lower center", ncols=3)
    return figure


def _any(rows: pl.DataFrame, name: str) -> bool:
    return name in rows.columns and bool((rows[name].fill_null(0) != 0).any())


def _draw_latency(axis: Axes, rows: pl.DataFrame, name: str, colours: Sequence[str]) -> None:
    values = {word: rows[f"{name}.{word}"].cast(float).to_numpy() for word, _, _ in PERCENTILES}
    places = np.arange(len(rows))
    axis.hlines(places, values["p50"], values["p99"], color=colours, linewidth=1.2)
    for word, marker, fill in PERCENTILES:
        axis.scatter(
            values[word], places, marker=marker, s=26, linewidths=1.2, zorder=3, label=word,
            **({"color": fill} if marker == "|" else
               {"facecolors": fill or colours, "edgecolors": colours}),
        )
    every = np.concatenate(list(values.values()))
    positive = every[every > 0]
    scale_latency(axis, positive)
    for place in places[np.isnan(values["p50"])]:
        axis.text(0.02, place, "not measured", transform=axis.get_yaxis_transform(), color=GREY,
                  va="center", fontsize=8)


def _draw_bars(axis: Axes, rows: pl.DataFrame, name: str, colours: Sequence[str]) -> None:
    values = rows[name].cast(float).fill_null(0.0).to_numpy()
    axis.barh(np.arange(len(rows)), values * (100 if name in PERCENT else 1), color=colours)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5))
