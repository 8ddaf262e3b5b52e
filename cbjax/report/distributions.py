"""Latency distributions: for every run, which share of tokens or requests was at most so slow."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbjax.metrics import inter_token_gaps, request_latencies
from cbjax.report.style import GREY, house_style, line_styles, new_figure, safe, scale_latency
from cbjax.results import Run

PANELS = (
    ("ttft_s", "time to first token (s)", "share of requests"),
    ("itl_s", "gap between tokens (s)", "share of gaps"),
    ("e2e_s", "end-to-end latency (s)", "share of requests"),
)


def draw_latencies(runs: Sequence[Run]) -> Figure:
    """Draw cumulative distributions of TTFT, ITL and end-to-end latency of completed requests.

    Dots mark p50 and p95. Axes are logarithmic where values span more than a factor of 30. A run
    that delivered whole answers has no gaps and is named in the panel instead of drawn at 0.

    Args:
        runs: at least one, with request tables.
    """
    samples = [_samples(run) for run in runs]
    with house_style():
        figure = new_figure(11.0, 3.6 + 0.22 * (1 + (len(runs) - 1) // 4))
        axes = figure.subplots(1, len(PANELS), sharey=True)
        styles = line_styles([run.policy for run in runs])
        for axis, (name, title, share) in zip(axes, PANELS, strict=True):
            for run, sample, style in zip(runs, samples, styles, strict=True):
                _draw(axis, np.sort(sample[name]), label=safe(run.label), **style)
            positive = np.concatenate([sample[name][sample[name] > 0] for sample in samples])
            scale_latency(axis, positive)
            pairs = zip(runs, samples, strict=True)
            absent = [run.label for run, sample in pairs if not len(sample[name])]
            if absent:
                text = "not measured:\n" + "\n".join(safe(label) for label in absent)
                axis.text(0.97, 0.05, text, transform=axis.transAxes, ha="right", color=GREY)
            axis.set_xlabel(title)
            axis.set_ylabel(share)
            axis.set_ylim(0, 1.02)
        axes[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        handles = [
            axis_line for axis_line in axes[-1].get_lines() if axis_line.get_label()[0] != "_"
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _samples(run: Run) -> dict[str, np.ndarray]:
    latencies = request_latencies(run.tables.requests).filter(pl.col("outcome") == "completed")
    completed = run.tables.requests.join(latencies, on="request_id", how="semi")
    recorded = "token_times_s" in completed.columns
    measured = recorded and "itl_s" not in run.summary["not_measured"]
    return {
        "ttft_s": latencies["ttft_s"].drop_nulls().to_numpy(),
        "itl_s": inter_token_gaps(completed) if measured else np.empty(0),
        "e2e_s": latencies["e2e_s"].drop_nulls().to_numpy(),
    }


def _draw(axis: Axes, ordered: np.ndarray, **style) -> None:
    # Percentiles interpolate between order statistics, so the curve does too: the dots lie on it.
    if len(ordered) == 1:
        ordered = np.repeat(ordered, 2)
    axis.plot(ordered, np.linspace(0, 1, len(ordered)), **style)
    if len(ordered):
        points = np.percentile(ordered, [50, 95], method="linear")
        axis.plot(points, [0.5, 0.95], "o", color=style["color"], markersize=4)
