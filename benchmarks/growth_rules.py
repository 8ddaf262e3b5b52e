"""Rows of `benchmarks.growth`, the judgement about them, and their figure."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from cbjax.report.style import BLUE, GREY, LIGHT_GREY, ORANGE, house_style, new_figure, save

FLAT, LINEAR = "flat", "linear"
SLOPE = {FLAT: 0.0, LINEAR: 1.0}  # in log-log
# Of a slope, for noise and for CPU caches that a greater size leaves: over four octaves a flat
# series may grow by half, a linear one by half more than its size.
TOLERANCE = 0.15


@dataclass(frozen=True)
class Row:
    """One point of a series; seconds, or bytes in both columns."""

    axis: str
    series: str
    size: int
    wall: float
    cpu: float
    most: str  # FLAT or LINEAR
    unit: str = "s"

    def __str__(self) -> str:
        values = f"{self.wall / 2**20:.3f} MiB"
        if self.unit == "s":
            values = f"{self.wall * 1e3:.4f} ms wall, {self.cpu * 1e3:.4f} ms CPU"
        return f"{self.axis:18} {self.series:22} {self.size:>8}  {values}"


@dataclass(frozen=True)
class Verdict:
    """How a series grows: the slope of its CPU seconds in log-log, and what it may be at most."""

    axis: str
    series: str
    slope: float
    growth: float  # last point over first
    most: str

    @property
    def holds(self) -> bool:
        """Whether it grows no faster than it may."""
        return self.slope <= SLOPE[self.most] + TOLERANCE

    def __str__(self) -> str:
        return (
            f"{self.axis:18} {self.series:22} slope {self.slope:5.2f}, x{self.growth:.2f} first to "
            f"last, at most {self.most}: {'holds' if self.holds else 'GROWS FASTER'}"
        )


def judge(rows: list[Row]) -> list[Verdict]:
    """One verdict per series of at least two points, in the order of the rows.

    The slope is the steepest of the line through all points and of the one through their upper half
    (three points at least), so that a constant part does not hide what comes to dominate.
    """
    verdicts = []
    for (axis, series), points in series_of(rows).items():
        if len(points) < 2:
            continue
        size = np.log([row.size for row in points])
        cpu = np.log([row.cpu for row in points])
        upper = slice(min(len(points) // 2, max(len(points) - 3, 0)), None)
        slope = max(np.polyfit(size[part], cpu[part], 1)[0] for part in (slice(None), upper))
        growth = float(np.exp(cpu[-1] - cpu[0]))
        verdicts.append(Verdict(axis, series, float(slope), growth, points[0].most))
    return verdicts


def series_of(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by axis and series, ascending in size."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.size):
        found.setdefault((row.axis, row.series), []).append(row)
    order = {(row.axis, row.series): at for at, row in reversed(list(enumerate(rows)))}
    return dict(sorted(found.items(), key=lambda item: order[item[0]]))


def draw(rows: list[Row], path: Path, title: str) -> None:
    """One panel per axis, both scales logarithmic, a grey line for what it may be at most."""
    panels = {
        axis: dict(group)
        for axis, group in groupby(series_of(rows).items(), key=lambda item: item[0][0])
    }
    with house_style():
        columns = min(4, len(panels))
        lines = -(-len(panels) // columns)
        figure = new_figure(3.1 * columns, 2.6 * lines + 0.3)
        for at, (axis, series) in enumerate(panels.items()):
            panel = figure.add_subplot(lines, columns, at + 1)
            for colour, ((_, name), points) in zip((BLUE, ORANGE), series.items(), strict=False):
                scale = 1e3 if points[0].unit == "s" else 2**-20
                size = np.array([row.size for row in points], float)
                cpu = scale * np.array([row.cpu for row in points])
                panel.plot(size, cpu, "o-", color=colour, markersize=3, label=name)
                wall = [scale * row.wall for row in points]
                if points[0].unit == "s":
                    panel.plot(size, wall, ":", color=colour, linewidth=1)
                bound = cpu[0] * (size / size[0]) ** SLOPE[points[0].most]
                panel.plot(size, bound, "--", color=LIGHT_GREY, linewidth=1, zorder=0)
            panel.set_xscale("log", base=2 if axis != "waiting requests" else 10)
            panel.set_yscale("log")
            low, high = panel.get_ylim()
            panel.set_ylim(low / 2, high * 8)
            panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.set_xlabel("KV blocks" if axis == "memory" else axis)
            seconds = next(iter(series.values()))[0].unit == "s"
            panel.set_ylabel("CPU ms" if seconds else "MiB")
            panel.legend(fontsize=7, loc="upper left")
        figure.suptitle(
            f"{title}; solid: CPU, dotted: wall, dashed: the most it may grow", fontsize=9,
            color=GREY,
        )
        save(figure, path)
