"""The simulator beside the engine: each metric at every load, and how far the simulation is off."""

from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Group
from rich.table import Table

from cbjax.report.format import ABSENT, metric_title, unit_of
from cbjax.report.style import BLACK, GREY, VERMILION, house_style, new_figure, safe
from cbjax.results import read_fidelity

COLUMNS = 4
SHORT = {"output_tokens_per_s": "tok /s", "preemptions": "pre- empted"}
GOALS = {"throughput": 0.02, "latency": 0.05}  # below saturation


def draw(rows: pl.DataFrame, folder: Path) -> Figure:
    """Draw a panel per metric: the engine's line, the simulations' markers, over the load.

    Markers of loads that were fitted are hollow, those of held-out ones filled; crosses are the
    control with too few KV blocks.

    Args:
        rows: from `collect_runs`; not used.
        folder: of a study with a fit.

    Raises:
        FileNotFoundError: the study compared nothing.
    """
    compared = read_fidelity(folder)
    metrics = compared["metric"].unique(maintain_order=True).to_list()
    high = -(-len(metrics) // COLUMNS)
    with house_style():
        figure = new_figure(2.9 * COLUMNS, 2.4 * high + 0.5)
        panels = figure.subplots(high, COLUMNS, squeeze=False).flatten()
        for panel, metric in zip(panels, metrics, strict=False):
            _draw_metric(panel, compared.filter(pl.col("metric") == metric), metric)
            panel.set_title(safe(metric_title(metric)))
        for place, panel in enumerate(panels):
            if place >= len(metrics):
                panel.set_axis_off()
            elif place + COLUMNS >= len(metrics):
                panel.set_xlabel("offered load (requests/s)")
        handles = panels[0].get_legend_handles_labels()[0]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def table(rows: pl.DataFrame, folder: Path) -> Group:
    """The errors: a line per load and simulation, held-out loads apart, then what was reached."""
    compared = read_fidelity(folder)
    shown = Table(title="error of the simulation (%), preemptions as a difference",
                  box=box.SIMPLE_HEAD, title_justify="left")
    shown.add_column("load", no_wrap=True)
    for metric in compared["metric"].unique(maintain_order=True):
        header = SHORT.get(metric) or metric.replace("_s.", " ").upper().replace(" P", " p")
        shown.add_column(header, justify="right", width=max(5, *map(len, header.split())))
    for against, held_out in _parts(compared):
        part = compared.filter((pl.col("against") == against) & (pl.col("held_out") == held_out))
        shown.add_section()
        name = "" if against == compared["against"][0] else "control, "
        shown.add_row(f"{name}{'held out' if held_out else 'fitted'}")
        for _, group in part.group_by("label", maintain_order=True):
            load = "  " + group["label"][0] + (" *" if group["saturated"][0] else "")
            shown.add_row(load, *map(_error, group["metric"], group["error"]))
    return Group(shown, *_reached(compared))


def reached(compared: pl.DataFrame) -> pl.DataFrame:
    """How far the simulations of each kind are off: a row per simulation, held out or not.

    Args:
        compared: from `read_fidelity`.

    Returns:
        against, held_out, `throughput` and `latency` (the mean of the absolute relative errors at
        loads below saturation; null where there are none), and `worst_throughput` and
        `worst_latency` of the same.
    """
    below = compared.filter(~pl.col("saturated") & (pl.col("metric") != "preemptions"))
    kind = pl.when(pl.col("metric") == "output_tokens_per_s").then(pl.lit("throughput")).otherwise(
        pl.lit("latency"))
    size = below.with_columns(kind=kind, size=pl.col("error").abs())
    rows = []
    for against, held_out in _parts(compared):
        row: dict[str, object] = {"against": against, "held_out": held_out}
        for name in GOALS:
            part = size.filter((pl.col("against") == against) & (pl.col("kind") == name)
                               & (pl.col("held_out") == held_out))["size"]
            row |= {name: part.mean(), f"worst_{name}": part.max()}
        rows.append(row)
    numbers = ("throughput", "latency", "worst_throughput", "worst_latency")
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(numbers, pl.Float64))


def control_is_worse(compared: pl.DataFrame) -> bool | None:
    """Whether the control is further off at the loads where the engine preempted; None: at none.

    Args:
        compared: from `read_fidelity`; the control is its last simulation.
    """
    scarce = compared.filter((pl.col("metric") == "preemptions") & (pl.col("measured") > 0))
    part = compared.join(scarce.select("label").unique(), on="label", how="semi")
    off = part.filter(pl.col("metric") != "preemptions").group_by(
        "against", maintain_order=True).agg(pl.col("error").abs().mean())["error"]
    return None if off.is_empty() else bool(off[-1] > off[0])


def _reached(compared: pl.DataFrame) -> list[str]:
    cells = compared.unique("label", maintain_order=True)
    lines = [
        f"decisions under the real times: {int(cells['differing'].sum())} of "
        f"{int(cells['iterations'].sum())} iterations differ",
        "* saturated: more than 1 % of the arrivals only lengthen the queue",
    ]
    worse = control_is_worse(compared)
    if worse is not None:
        lines.append("the control with too few KV blocks fits " + (
            "worse where memory was scarce, as it must" if worse else
            "NO WORSE where memory was scarce: the comparison cannot tell"
        ))
    for row in reached(compared).to_dicts():
        if row["throughput"] is None:
            continue
        where = f"{row['against']}, {'held out' if row['held_out'] else 'fitted'}"
        parts = [
            f"{name} off by {100 * row[name]:.1f} % on average, {100 * row[f'worst_{name}']:.1f} % "
            f"at most (goal {100 * goal:.0f} %)"
            for name, goal in GOALS.items()
            if row[name] is not None
        ]
        lines.append(f"{where}, below saturation: {'; '.join(parts)}")
    return lines


def _parts(compared: pl.DataFrame) -> list[tuple[str, bool]]:
    return [
        (against, held_out)
        for against in compared["against"].unique(maintain_order=True)
        for held_out in (True, False)
        if len(compared.filter((pl.col("against") == against) & (pl.col("held_out") == held_out)))
    ]


def _error(metric: str, error: float | None) -> str:
    if error is None:
        return ABSENT
    if metric == "preemptions":
        return f"{error:+.0f}"
    return f"{100 * error:+.1f}" if abs(error) < 0.1 else f"{100 * error:+.0f}"


def _draw_metric(axis: Axes, rows: pl.DataFrame, metric: str) -> None:
    scale = unit_of(metric)
    first, *others = rows.partition_by("against", maintain_order=True)
    first = first.sort("load")
    axis.plot(first["load"], scale * first["measured"], ".-", color=BLACK, label="engine")
    for part in others:
        axis.plot(part["load"], scale * part["simulated"], "x", color=GREY, linestyle="none",
                  label=f"simulated, {part['against'][0]}")
    held_out = first["held_out"].to_numpy()
    load, found = first["load"].to_numpy(), scale * first["simulated"].to_numpy()
    for mask, filled, text in ((held_out, True, "held out"), (~held_out, False, "fitted")):
        axis.plot(load[mask], found[mask], "o", color=VERMILION, linestyle="none", markersize=6,
                  markerfacecolor=VERMILION if filled else "white", label=f"simulated, {text}")
    axis.set_xlim(left=0)
    shown = np.concatenate([rows["measured"], rows["simulated"]]).astype(float)
    highest = scale * np.nanmax(shown, initial=0.0)
    axis.set_ylim(0, 1.15 * highest if highest > 0 else 1)
