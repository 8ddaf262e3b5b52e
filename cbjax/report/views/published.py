"""Published numbers beside simulated ones: what others measured, and what this study found."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Group
from rich.table import Table

from cbjax.report.capacity import capacities
from cbjax.report.format import ABSENT, PERCENT, significant
from cbjax.report.style import BLACK, GREY, VERMILION, house_style, new_figure, safe
from cbjax.results import has_capacity, read_capacity

Claims = Sequence[Mapping[str, Any]]
COLUMNS = 2
NEEDED = ("what", "source", "metric", "of", "published")
CAPACITY = "capacity"
MOST_CHARACTERS = 34


def compare(rows: pl.DataFrame, folder: Path, claims: Claims) -> pl.DataFrame:
    """A row per claim.

    Args:
        rows: from `collect_runs`.
        folder: of the study; its capacities are read where a claim needs them.
        claims: each with `what` is told, its `source`, the `metric` (a column of `rows`, or
            "capacity" in requests/s), `of` which run (its label) or of which two (their ratio),
            the `published` number or (least, greatest); and, if need be, what it is `called` and
            why it `cannot` match.

    Returns:
        what, source, metric, of, `published_low`, `published_high`, `simulated` (null where the
        study has no such run), `off`: how far the simulated number lies outside of the published
        ones, as a share of the nearer one, 0 between them; cannot.

    Raises:
        ValueError: a claim without one of its parts, or of more than two runs.
    """
    measured = _by_label(rows, folder)
    return pl.DataFrame(
        [_row(claim, measured) for claim in claims],
        schema_overrides={"simulated": pl.Float64, "off": pl.Float64, "cannot": pl.String},
    )


def draw(rows: pl.DataFrame, folder: Path, *, claims: Claims) -> Figure:
    """Draw a panel per kind of number: published ones as bars or diamonds, simulated as dots.

    What cannot match is grey.

    Args:
        rows: from `collect_runs`.
        folder: of the study.
        claims: see `compare`.
    """
    compared = compare(rows, folder, claims)
    kinds = compared["what"].unique(maintain_order=True).to_list()
    high = -(-len(kinds) // COLUMNS)
    most = max(len(group) for _, group in compared.group_by("what"))
    with house_style():
        figure = new_figure(5.4 * COLUMNS, (0.34 * most + 0.9) * high + 0.4)
        panels = figure.subplots(high, COLUMNS, squeeze=False).flatten()
        for panel, kind in zip(panels, kinds, strict=False):
            _draw_kind(panel, compared.filter(pl.col("what") == kind))
            panel.set_title(safe(kind))
        for panel in panels[len(kinds):]:
            panel.set_axis_off()
        handles = panels[0].get_legend_handles_labels()[0]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def table(rows: pl.DataFrame, folder: Path, *, claims: Claims) -> Group:
    """The same as a table per kind of number, with why what cannot match cannot."""
    compared = compare(rows, folder, claims)
    kinds = compared.group_by("what", maintain_order=True)
    return Group("published beside simulated", *(_table_of(group) for _, group in kinds))


def _table_of(rows: pl.DataFrame) -> Table:
    shown = Table(title=rows["what"][0], caption=rows["source"][0], box=box.SIMPLE_HEAD,
                  title_justify="left", caption_justify="left")
    shown.add_column("of", no_wrap=True, min_width=18)
    for name, width in (("published", 11), ("simulated", 9), ("off by", 7)):
        shown.add_column(name, justify="right", no_wrap=True, min_width=width)
    shown.add_column("cannot match, because", min_width=21)
    for row in rows.to_dicts():
        ends = dict.fromkeys((row["published_low"], row["published_high"]))
        shown.add_row(
            row["of"], " – ".join(_number(end, row["metric"]) for end in ends),
            _number(row["simulated"], row["metric"]),
            ABSENT if row["off"] is None else f"{100 * row['off']:+.0f} %", row["cannot"],
        )
    return shown


def _by_label(rows: pl.DataFrame, folder: Path) -> dict[str, dict[str, Any]]:
    measured = {row["label"]: row for row in rows.to_dicts()}
    if has_capacity(folder):
        for row in capacities(read_capacity(folder)).to_dicts():
            measured.setdefault(row["label"], {})[CAPACITY] = row["capacity"]
    return measured


def _row(claim: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    for name in NEEDED:
        if name not in claim:
            raise ValueError(f"study.views.published.claims: {dict(claim)!r} has no {name!r}")
    of = list(claim["of"])
    if not 1 <= len(of) <= 2:
        raise ValueError(f"of = {of!r}: name one run, or two for their ratio")
    values: list[Any] = [measured.get(label, {}).get(claim["metric"]) for label in of]
    simulated = None if None in values else values[0] / values[1] if len(of) == 2 else values[0]
    low, high = np.broadcast_to(claim["published"], 2).astype(float).tolist()
    return {
        "what": claim["what"], "source": claim["source"], "metric": claim["metric"],
        "of": claim.get("called") or " / ".join(of),
        "published_low": low, "published_high": high,
        "simulated": simulated, "off": _off(simulated, low, high), "cannot": claim.get("cannot"),
    }


def _off(simulated: float | None, low: float, high: float) -> float | None:
    if simulated is None:
        return None
    nearest = min(max(simulated, low), high)
    return simulated / nearest - 1.0


def _number(value: float | None, metric: str) -> str:
    if value is None:
        return ABSENT
    return f"{100 * value:.1f} %" if metric in PERCENT else significant(float(value))


def _draw_kind(axis: Axes, rows: pl.DataFrame) -> None:
    places = np.arange(len(rows))[::-1]
    percent = rows["metric"][0] in PERCENT
    scale = 100.0 if percent else 1.0
    low, high = (scale * rows[f"published_{end}"].to_numpy() for end in ("low", "high"))
    found = scale * rows["simulated"].fill_null(np.nan).to_numpy()
    cannot = rows["cannot"].is_not_null().to_numpy()
    axis.hlines(places, low, high, color=BLACK, linewidth=5)
    for ends in (low, high):
        axis.plot(ends, places, "D", color=BLACK, markersize=6, linestyle="none",
                  label="published" if ends is low else None)
    for mask, colour, label in (
        (~cannot, VERMILION, "simulated"), (cannot, GREY, "simulated, cannot match")
    ):
        axis.plot(found[mask], places[mask], "o", color=colour, markersize=7, linestyle="none",
                  markerfacecolor=colour if colour is VERMILION else "white", label=label)
    labels = [safe(fill(label, MOST_CHARACTERS)) for label in rows["of"]]
    axis.set_yticks(places, labels)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlim(0, 100 if percent else 1.12 * np.nanmax([*high, *found]))
    if percent:
        axis.set_xlabel("%")
