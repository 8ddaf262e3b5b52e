"""The runs of a study as lines over one setting: what curves and trade-offs are drawn from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from cbjax.report.style import line_styles
from cbjax.results import parts_of, short_label

LOADS = ("workload.arrivals.rate", "workload.arrivals.concurrency")


@dataclass(frozen=True)
class Line:
    """One variant over a setting.

    Attributes:
        label: what the variant is called without the setting.
        setting: the setting's dotted name.
        at: its values, ascending.
        means: a row per value, the mean of every metric over the seeds.
        style: colour and dash for matplotlib; a policy keeps its colour beside others.
    """

    label: str
    setting: str
    at: np.ndarray
    means: pl.DataFrame
    style: Mapping[str, Any]

    @property
    def is_load(self) -> bool:
        """Whether the setting is how much arrives."""
        return self.setting in LOADS

    def values(self, metric: str) -> np.ndarray:
        """A metric along the line; NaN where it was not measured."""
        if metric not in self.means.columns:
            return np.full(len(self.at), np.nan)
        return self.means[metric].cast(pl.Float64).fill_null(np.nan).to_numpy()


def lines_of(rows: pl.DataFrame, setting: str) -> list[Line]:
    """Group runs into lines.

    Args:
        rows: from `collect_runs`.
        setting: column of the setting along the lines.

    Raises:
        ValueError: it is no column of numbers.
    """
    rows = _with_setting(rows, setting)
    names = [
        short_label(label, setting, "seed") or policy
        for label, policy in rows.select("label", "policy").iter_rows()
    ]
    named = rows.with_columns(_line=pl.Series(names))
    groups = named.partition_by("_line", maintain_order=True)
    styles = line_styles([group["policy"][0] for group in groups])
    lines = []
    for group, style in zip(groups, styles, strict=True):
        means = group.group_by(setting).agg(
            pl.col(column).mean() for column, kind in group.schema.items()
            if kind.is_numeric() and column != setting
        ).drop_nulls(setting).sort(setting)
        at = means[setting].cast(pl.Float64).to_numpy()
        lines.append(Line(group["_line"][0], setting, at, means, style))
    return lines


def _with_setting(rows: pl.DataFrame, setting: str) -> pl.DataFrame:
    """The rows with the setting as a column of numbers.

    An alias, such as the budget, became a knob of each policy; what it was is in the label.
    """
    if setting in rows.columns and rows[setting].dtype.is_numeric():
        return rows
    leaf = setting.rpartition(".")[2]
    texts = pl.Series([parts_of(label).get(leaf) for label in rows["label"]], dtype=pl.String)
    values = texts.cast(pl.Float64, strict=False)
    if values.null_count():
        raise ValueError(f"{setting!r} is not a setting with numbers of these runs")
    return rows.with_columns(values.alias(setting))
