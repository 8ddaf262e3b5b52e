"""What the compiled shapes cost: positions computed in vain beside the scheduled ones."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbjax.report.style import LIGHT_GREY, ORANGE, SKY, VERMILION, house_style, new_figure, safe
from cbjax.results import Run

FLOOR = 0.5
MOST_TICKS = 6


def draw_padding(runs: Sequence[Run]) -> Figure:
    """Draw scheduled and padded positions of every iteration, and their totals.

    Left, per iteration: the height of a column is the size of its rung; what the scheduler asked
    for is split into decode and prefill, the rest is padding. The scale is logarithmic, since a
    decode iteration is often a hundred times smaller than a prefill; areas are therefore not
    amounts, and the totals stand on the right as shares. Padding that a policy asked for (padded
    static batching) stands apart from the ladder's.

    Args:
        runs: at least one, with iteration tables.

    Raises:
        ValueError: a run has no iterations.
    """
    for run in runs:
        if run.tables.iterations.is_empty():
            raise ValueError(f"run {run.label!r} has no iterations; record=iterations keeps them")
    with house_style():
        figure = new_figure(11.0, 1.75 * len(runs) + 0.95)
        grid = figure.subplots(
            len(runs), 2, sharex="col", squeeze=False, gridspec_kw={"width_ratios": [4.2, 1]}
        )
        every = [_layers(run) for run in runs]
        top = max(float(np.sum([v for _, v, _ in layers], axis=0).max()) for layers in every)
        powers = range(0, int(np.log2(max(top, 1))) + 1)
        ticks = [2**power for power in powers][:: 1 + len(powers) // MOST_TICKS]
        for (left, right), run, layers in zip(grid, runs, every, strict=True):
            _draw_iterations(left, layers)
            _draw_totals(right, layers)
            left.set_title(safe(run.label))
            left.set_ylabel("positions (log scale)")
            left.set_ylim(FLOOR, 1.3 * top)
            left.set_yticks(ticks, [str(tick) for tick in ticks])
        grid[-1, 0].set_xlabel("iteration")
        grid[-1, 1].set_xlabel("share of all positions (%)")
        present = {name for layers in every for name, values, _ in layers if values.any()}
        handles = [
            handle
            for handle, name in zip(*grid[0, 0].get_legend_handles_labels(), strict=True)
            if name in present
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _layers(run: Run) -> list[tuple[str, np.ndarray, str]]:
    rows = run.tables.iterations
    padded = rows["padded_tokens"].to_numpy()
    asked = np.zeros_like(padded)
    if run.tables.memory is not None and len(run.tables.memory) == len(rows):
        asked = np.minimum(run.tables.memory["extra_tokens"].to_numpy(), padded)
    return [
        ("decode", rows["decode_tokens"].to_numpy(), SKY),
        ("prefill", rows["prefill_tokens"].to_numpy(), ORANGE),
        ("padding asked for by the policy", asked, VERMILION),
        ("padding up to the rung", padded - asked, LIGHT_GREY),
    ]


def _draw_iterations(axis: Axes, layers: Sequence[tuple[str, np.ndarray, str]]) -> None:
    count = len(layers[0][1])
    edges = np.arange(count + 1)
    below = np.zeros(count)
    for name, values, colour in layers:
        # Where a layer is empty its top equals its base, so nothing is drawn.
        base, top = np.maximum(below, FLOOR), np.maximum(below + values, FLOOR)
        axis.stairs(top, edges, baseline=base, fill=True, color=colour, label=name)
        below = below + values
    axis.set_yscale("log", base=2)
    axis.margins(x=0.01)


def _draw_totals(axis: Axes, layers: Sequence[tuple[str, np.ndarray, str]]) -> None:
    totals = np.array([values.sum() for _, values, _ in layers], dtype=float)
    shares = 100 * totals / max(totals.sum(), 1.0)
    places = range(len(layers))
    axis.barh(places, shares, color=[colour for _, _, colour in layers], height=0.72)
    for place, value in zip(places, shares, strict=True):
        if value > 0:
            axis.text(value + 1.5, place, f"{value:.0f} %", va="center", fontsize=8)
    axis.set_yticks([])
    axis.set_xlim(0, 118)
    axis.set_xticks([0, 50, 100])
    axis.set_ylim(len(layers) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
