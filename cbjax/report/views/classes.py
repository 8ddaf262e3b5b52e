"""Kinds of requests apart: what each class waits, and how fairly the classes are treated."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from cbjax.metrics import request_latencies
from cbjax.report.views.curves import draw as draw_curves
from cbjax.results import read_run

FAIRNESS = "fairness between the classes (Jain)"


def draw(
    rows: pl.DataFrame, folder: Path, *, x: str, metrics: Sequence[str] | None = None
) -> Figure:
    """Draw each class's TTFT p95 and mean E2E latency by output token, the fairness, and metrics.

    The fairness is Jain's index of the classes' mean E2E latencies by output token: 1 if they are
    alike, 1/n if one of n classes takes all the time.

    Args:
        rows: from `collect_runs`, of runs that kept their requests.
        folder: of the study; not used.
        x: column of the setting, numbers.
        metrics: panels, by their titles here or columns of `collect_runs`; None: all of these and
            the throughput.
    """
    told = pl.DataFrame([by_class(Path(run)) for run in rows["folder"]])
    rows = pl.concat([rows, told], how="horizontal")
    panels = [*told.columns, "output_tokens_per_s"] if metrics is None else metrics
    return draw_curves(rows, folder, x=x, metrics=panels)


def by_class(run: Path) -> dict[str, float]:
    """What the requests of one run say, by name of the panel."""
    requests = read_run(run).tables.requests
    latencies = request_latencies(requests).join(
        requests.select("request_id", "output_tokens"), on="request_id", maintain_order="left",
    ).filter(outcome="completed")
    by_name = latencies.with_columns(stretch=pl.col("e2e_s") / pl.col("output_tokens"))
    parts = {part["class"][0]: part for part in by_name.partition_by("class")}
    stretch = {name: float(np.mean(parts[name]["stretch"].to_numpy())) for name in sorted(parts)}
    return {
        **{f"TTFT p95 of {name} (s)": parts[name]["ttft_s"].quantile(0.95, "linear")
           for name in stretch},
        **{f"E2E by output token of {name} (s)": value for name, value in stretch.items()},
        FAIRNESS: jain(np.array(list(stretch.values()))),
    }


def jain(values: np.ndarray) -> float:
    """Jain's index of fairness: (sum x)^2 / (n sum x^2)."""
    return float(values.sum() ** 2 / (len(values) * np.square(values).sum()))
