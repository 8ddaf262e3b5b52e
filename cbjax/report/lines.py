"""The runs of a study as lines over one setting: what curves and trade-offs are drawn from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from cbjax.report.style import LINE_STYLES, VARIANT_COLOURS, policy_colour

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
    """Group runs into lines; where all are of one policy, colours and dashes tell variants.

    Args:
        rows: from `collect_runs`.
        setting: column of the setting along the lines.

    Raises:
        ValueError: it is no column of numbers.
    """
    rows = _with_setting(rows, setting)
    named = rows.with_columns(_line=pl.Series([_name(row, setting) for row in rows.to_dicts()]))
    lines: list[Line] = []
    dashes = dict[str, int]()
    of_one_policy = rows["policy"].n_unique() == 1 and named["_line"].n_unique() > 1
    for (label,), group in named.group_by("_line", maintain_order=True):
        means = group.group_by(setting).agg(
            pl.col(column).mean() for column, kind in group.schema.items()
            if kind.is_numeric() and column != setting
        ).drop_nulls(setting).sort(setting)
        colour = policy_colour(group["policy"][0])
        if of_one_policy:
            colour = VARIANT_COLOURS[len(lines) % len(VARIANT_COLOURS)]
        number = dashes[colour] = len(lines) if of_one_policy else dashes.get(colour, -1) + 1
        style = {"color": colour, "linestyle": LINE_STYLES[number % len(LINE_STYLES)]}
        at = means[setting].cast(pl.Float64).to_numpy()
        lines.append(Line(str(label), setting, at, means, style))
    return lines


def _with_setting(rows: pl.DataFrame, setting: str) -> pl.DataFrame:
    """The rows with the setting as a column of numbers.

    An alias, such as the budget, became a knob of each policy; what it was is in the label.
    """
    if setting in rows.columns and rows[setting].dtype.is_numeric():
        return rows
    leaf = setting.rpartition(".")[2]
    values = rows["label"].str.extract(rf"(?:^|, ){leaf}=([0-9.]+)").cast(pl.Float64)
    if values.null_count():
        raise ValueError(f"{setting!r} is not a setting with numbers of these runs")
    return rows.with_columns(values.alias(setting))


def _name(row: Mapping[str, Any], setting: str) -> str:
    """A run's label without the setting and the seed; its policy where nothing is left."""
    parts = str(row["label"]).split(", ")
    leaf = setting.rpartition(".")[2]
    kept = [part for part in parts if not part.startswith((f"{setting}=", f"{leaf}=", "seed="))]
    return ", ".join(kept) or str(row["policy"])
