"""Capacities beside one another: the greatest load each setting carries, and what gave way."""

from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from cbjax.report.capacity import capacities
from cbjax.report.style import BLACK, house_style, new_figure, policy_colour, safe
from cbjax.results import read_capacity


def draw(rows: pl.DataFrame, folder: Path) -> Figure:
    """Draw a bar per setting up to the greatest load that passed, with the bracket's other end.

    With several seeds the bar is their mean, and the whisker their range. Beside it stands the
    limit that gave way first.

    Args:
        rows: from `collect_runs`; not used.
        folder: of a study with a search.

    Raises:
        FileNotFoundError: the study searched for nothing.
    """
    found = capacities(read_capacity(folder)).reverse()
    places = list(range(len(found)))
    with house_style():
        figure = new_figure(8.0, 0.34 * len(found) + 1.2)
        axis = figure.subplots()
        means = found["capacity"].to_numpy()
        axis.barh(places, means, color=[policy_colour(name) for name in found["policy"]])
        whiskers = [means - found["lowest"].to_numpy(), found["highest"].to_numpy() - means]
        axis.errorbar(means, places, xerr=whiskers, fmt="none", ecolor=BLACK, elinewidth=1.2,
                      capsize=3)
        for place, row in zip(places, found.to_dicts(), strict=True):
            text = row["gave_way"] or "nothing gave way"
            axis.annotate(text, (row["highest"], place), xytext=(6, 0), va="center", fontsize=8,
                          textcoords="offset points")
        axis.set_yticks(places, [safe(label) for label in found["label"]])
        axis.set_xlim(0, 1.35 * max([*found["highest"], 1e-9]))
        axis.set_xlabel("capacity (requests/s); beside it: what gave way above it")
        axis.grid(visible=False, axis="y")
    return figure
