"""Gaps between tokens over time: what a stream sees when somebody else's prompt is computed."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from cbjax.report.style import GREY, house_style, new_figure, policy_colour, safe
from cbjax.results import Run

MOST_COLUMNS = 3


def draw_gaps(runs: Sequence[Run]) -> Figure:
    """Draw every gap between two tokens of a request as a dot at the moment when it ended.

    One panel per run, on common axes. Dashed lines mark arrivals after the first one, up to eight.

    Args:
        runs: at least one, with token times; see `has_gaps`.
    """
    columns = min(len(runs), MOST_COLUMNS)
    lines = -(-len(runs) // columns)
    with house_style():
        figure = new_figure(11.0, 2.5 * lines + 0.2)
        axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for axis, run in zip(axes.flat, runs, strict=False):
            ended_s, gap_s = _gaps(run.tables.requests)
            axis.scatter(
                ended_s, gap_s, s=7, alpha=0.5, linewidths=0, color=policy_colour(run.policy)
            )
            for moment in _late_arrivals(run.tables.requests):
                axis.axvline(moment, color=GREY, linestyle="--", linewidth=0.9)
            axis.set_title(safe(run.label))
        # The axes are one: their range is settled when everything is drawn.
        axes[0, 0].set_ylim(bottom=0)
        for axis in axes.flat[len(runs) :]:
            axis.set_axis_off()
        for axis in axes[:, 0]:
            axis.set_ylabel("gap between tokens (s)")
        for axis in axes.flat[max(len(runs) - columns, 0) : len(runs)]:
            axis.set_xlabel("time since the start (s)")
            axis.tick_params(labelbottom=True)
    return figure


def has_gaps(run: Run) -> bool:
    """Whether gaps were measured: tokens were streamed and their times recorded."""
    if "itl_s" in run.summary["not_measured"] or "token_times_s" not in run.tables.requests:
        return False
    return bool((run.tables.requests["token_times_s"].list.len() > 1).any())


def _gaps(requests: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """When each gap ended and how long it was, in seconds."""
    times = requests.select("request_id", pl.col("token_times_s")).explode("token_times_s")
    gaps = times.with_columns(
        gap_s=pl.col("token_times_s").diff().over("request_id")
    ).drop_nulls("gap_s")
    return gaps["token_times_s"].to_numpy(), gaps["gap_s"].to_numpy()


def _late_arrivals(requests: pl.DataFrame) -> list[float]:
    arrivals = requests["scheduled_arrival_s"].unique().sort()
    return arrivals.to_list()[1:9]
