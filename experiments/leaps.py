"""What leaping gains from idle to saturation: CPU time and turns against the requests that run.

    python -m benchmarks.simulator && python experiments/leaps.py results/benchmarks/simulator.json
"""

import argparse
import json
from pathlib import Path

from cbjax.report import house_style, save
from cbjax.report.style import BLUE, ORANGE, new_figure


def draw_leaps(rows: list[dict]):
    """Gain over the plain loop along the load; `rows` are those of the benchmark."""
    rows = sorted(rows, key=lambda row: row["mean_running"])
    running = [row["mean_running"] for row in rows]
    with house_style():
        figure = new_figure(6.0, 3.6)
        axis = figure.subplots()
        for label, colour, gains in (
            ("iterations per turn", ORANGE, [row["iterations"] / row["turns"] for row in rows]),
            ("CPU time, plain / leaping", BLUE, [row["plain_s"] / row["leap_s"] for row in rows]),
        ):
            axis.plot(running, gains, "o-", color=colour, label=label)
        axis.axhline(1.0, color="#666666", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_yscale("log")
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_xlabel("requests that run, on average")
        axis.set_ylabel("gain of leaping")
        axis.legend()
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="what benchmarks.simulator wrote")
    parser.add_argument("-o", "--output", type=Path, help="a .png, .pdf or .svg file")
    given = parser.parse_args()
    rows = json.loads(given.rows.read_text())["rows"]
    most = min(row["requests"] for row in rows)
    figure = draw_leaps([row for row in rows if row["requests"] == most])
    print(save(figure, given.output or given.rows.with_name("leaps.png")))
