"""The floor of an iteration on paper: where memory ends to be the limit, and what blocks cost."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich import box
from rich.table import Table

from cbjax.hardware import Accelerator, StepCosts, roofline
from cbjax.report.format import significant
from cbjax.report.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    house_style,
    new_figure,
    safe,
)

COLOURS = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, BLACK)
MOST_LINES = len(COLOURS)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def roofline_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """One line per combination.

    Args:
        rows: from `cbjax.roofline.rows_of`.
        title: above the table.
    """
    table = Table(title=title or None, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1),
                  caption="* the KV of so many sequences does not fit the device")
    heads = ("batch", "context", "chunk", "block size", "GB", "TFLOP", "FLOP per byte", "bound",
             "floor (ms)", "tokens/s")
    lines = []
    for row in rows:
        chunk = f"{row['chunk']}"
        if row["chunk"] and row["chunk_context"]:
            chunk += f" at {row['chunk_context']}"
        lines.append((
            f"{row['batch']}{'' if row['kv_fits'] else '*'}", str(row["context"]), chunk,
            str(row["block_size"]), significant(row["bytes"] / 1e9),
            significant(row["operations"] / 1e12), significant(row["intensity"]), row["bound"],
            significant(1e3 * row["floor_s"]), significant(row["tokens_per_s"]),
        ))
    for head, cells in zip(heads, zip(*lines, strict=True), strict=True):
        width = max(map(len, (*head.split(), *cells)))
        table.add_column(head, justify="left" if head == "bound" else "right", width=width)
    for line in lines:
        table.add_row(*line)
    return table


def draw_roofline(
    chip: Accelerator, costs: StepCosts, title: str, *, contexts: Sequence[int],
    batches: Sequence[int], block_size: int = 16, memory_fraction: float = 0.9,
    activations: float = 0.0,
) -> Figure:
    """Draw the floor against batch, chunk and block size, and the roofline itself.

    Dotted: the KV of so many sequences does not fit the device.

    Args:
        chip: the device.
        costs: of the model on it.
        title: what was asked, above all panels.
        contexts: one line each where the context matters; the middle one where it does not.
        batches: decodes beside a chunk, one line each.
        block_size: of the KV.
        memory_fraction: share of the memory to use.
        activations: bytes of it for activations.
    """
    contexts = sorted(set(contexts))[:MOST_LINES]
    blocks = roofline.kv_blocks(
        chip, costs, block_size, memory_fraction=memory_fraction, activations=activations
    )
    with house_style():
        figure = new_figure(11.0, 7.2)
        (decode, roof), (chunk, waste) = figure.subplots(2, 2)
        _draw_decode(decode, chip, costs, contexts, block_size, blocks)
        _draw_roof(roof, chip, costs, contexts, block_size)
        middle = contexts[len(contexts) // 2]
        beside = sorted(set(batches))[:MOST_LINES]
        _draw_chunk(chunk, chip, costs, beside, middle, block_size, blocks)
        _draw_waste(waste, contexts)
        figure.suptitle(safe(f"{title}: floors on paper, KV blocks of {block_size} tokens"),
                        fontsize=10)
    return figure


def _draw_decode(
    axis: Axes, chip: Accelerator, costs: StepCosts, contexts: Sequence[int], block_size: int,
    blocks: int,
) -> None:
    batch = np.arange(1, 513)
    for colour, context in zip(COLOURS, contexts, strict=False):
        work = roofline.iteration(batch=batch, context=context, block_size=block_size)
        floor_ms = 1e3 * roofline.floor(chip, costs, work).seconds
        fits = batch * -(-(context + 1) // block_size) <= blocks
        axis.plot(batch, floor_ms, color=colour, linestyle=":", linewidth=1.0)
        axis.plot(batch[fits], floor_ms[fits], color=colour, label=f"{context:,} tokens cached")
    weights_ms = 1e3 * costs.weights / chip.bandwidth
    axis.axhline(weights_ms, color=GREY, linewidth=0.8, linestyle="--", label="weights alone")
    _log2(axis, "sequences that decode")
    _log_ms(axis)
    axis.set_title("Decode: what more sequences cost (dotted: KV does not fit)")
    axis.legend()


def _draw_roof(
    axis: Axes, chip: Accelerator, costs: StepCosts, contexts: Sequence[int], block_size: int
) -> None:
    peak = chip.rate(costs.dtype)
    intensity = np.geomspace(0.3, 30 * peak / chip.bandwidth, 200)
    roof = np.minimum(peak, intensity * chip.bandwidth) / 1e12
    axis.plot(intensity, roof, color=GREY, linewidth=1.2)
    places = [(f"decode, {context:,} cached", colour, "o",
               roofline.iteration(batch=2 ** np.arange(9), context=context, block_size=block_size))
              for colour, context in zip(COLOURS, contexts, strict=False)]
    places.append(("prefill chunk, nothing cached", BLACK, "^",
                   roofline.iteration(chunk=2 ** np.arange(4, 13))))
    for label, colour, marker, work in places:
        least = roofline.floor(chip, costs, work)
        axis.plot(least.intensity, least.operations / least.seconds / 1e12, marker, color=colour,
                  markersize=4.5, label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_xlabel("intensity (FLOP per byte)")
    axis.set_ylabel("at most (TFLOP/s)")
    axis.set_title("Roofline: batches of 1 to 256, chunks of 16 to 4,096")
    axis.legend(loc="lower right")


def _draw_chunk(
    axis: Axes, chip: Accelerator, costs: StepCosts, batches: Sequence[int], context: int,
    block_size: int, blocks: int,
) -> None:
    chunk = np.arange(1, 8193)
    for colour, batch in zip(COLOURS, batches, strict=False):
        work = roofline.iteration(
            batch=batch, context=context, chunk=chunk, block_size=block_size
        )
        floor_ms = 1e3 * roofline.floor(chip, costs, work).seconds
        held = batch * -(-(context + 1) // block_size) + -(-chunk // block_size)
        fitting = np.where(held <= blocks, floor_ms, np.nan)
        axis.plot(chunk, floor_ms, color=colour, linestyle=":", linewidth=1.0)
        axis.plot(chunk, fitting, color=colour, label=str(batch))
    _log2(axis, "tokens of the chunk")
    _log_ms(axis)
    axis.set_title(f"A prefill chunk beside decodes of {context:,} cached tokens")
    axis.legend(title="decodes", ncols=2)


def _draw_waste(axis: Axes, contexts: Sequence[int]) -> None:
    sizes = np.asarray(BLOCK_SIZES)
    for colour, context in zip(COLOURS, contexts, strict=False):
        empty = []
        for size in sizes:
            lengths = np.arange(context, context + size)
            held = -(-lengths // size) * size
            empty.append(100 * float(1 - lengths.sum() / held.sum()))
        axis.plot(sizes, empty, "o-", markersize=4, color=colour, label=f"{context:,} tokens")
    _log2(axis, "tokens of a KV block")
    axis.set_ylabel("positions that hold no token (%)")
    axis.set_title("KV held and read in vain, mean over the fill of the last block")
    axis.legend()


def _log2(axis: Axes, label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(label)


def _log_ms(axis: Axes) -> None:
    """Milliseconds, with room above the lines for a legend."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * (high / low) ** 0.25)
    axis.set_ylabel("floor of an iteration (ms)")
