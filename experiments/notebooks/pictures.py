"""Pictures for the notebooks: lanes of requests, and the seats and KV blocks of a state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cbjax.core.plan import Plan
from cbjax.core.rows import NO_ROW
from cbjax.core.state import State
from cbjax.report import house_style
from cbjax.report.style import LIGHT_GREY, ORANGE, PALE, SKY, new_figure

OWNERS = ("#0072B2", "#009E73", "#CC79A7", "#B8A800", "#8C5109", "#D55E00")
STEPS = {"P": ORANGE, "D": SKY, ".": LIGHT_GREY, "-": PALE}
STEP_NAMES = {"P": "prefill", "D": "decode", ".": "waits", "-": "seat held for nothing"}


def draw_lanes(lanes: Mapping[str, Mapping[str, str]]) -> Figure:
    """One panel per schedule; in it a lane per request, a letter per iteration.

    Args:
        lanes: title -> request -> letters as `ascii_timeline` has them: P, D, `.`, `-`.
    """
    longest = max(len(text) for panel in lanes.values() for text in panel.values())
    with house_style():
        figure = new_figure(7.2, 0.3 * sum(map(len, lanes.values())) + 0.55 * len(lanes) + 0.5)
        panels = figure.subplots(len(lanes), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (title, panel) in zip(panels, lanes.items(), strict=True):
            for place, text in enumerate(panel.values()):
                for iteration, letter in enumerate(text):
                    if letter in STEPS:
                        axis.add_patch(Rectangle(
                            (iteration, place - 0.4), 1, 0.8, facecolor=STEPS[letter],
                            edgecolor="white",
                        ))
            axis.set_title(title)
            axis.set_yticks(range(len(panel)), list(panel))
            axis.set_ylim(len(panel) - 0.5, -0.5)
            axis.set_xlim(0, longest)
            axis.grid(axis="y", visible=False)
        panels[-1].set_xlabel("iteration")
        panels[-1].set_xticks(range(longest + 1))
        used = {letter for panel in lanes.values() for text in panel.values() for letter in text}
        handles = [
            Patch(facecolor=STEPS[letter], label=name)
            for letter, name in STEP_NAMES.items() if letter in used
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


@dataclass(frozen=True)
class Snapshot:
    """A state between `schedule` and `commit`, in plain Python.

    Attributes:
        title: of the panel.
        seats: request and its tokens of this iteration, in run order.
        prefills: which of these are prefills.
        waiting: requests that wait, first in line first.
        owner: `[N]` request that holds the block, -1 = free.
        filled: `[N]` positions of the block that hold KV (this iteration's included).
        block_size: positions of a block.
    """

    title: str
    seats: list[tuple[int, int]]
    prefills: list[bool]
    waiting: list[int]
    owner: np.ndarray
    filled: np.ndarray
    block_size: int


def snapshot(state: State, plan: Plan, title: str) -> Snapshot:
    """What `schedule` returned, for a picture; take it before `commit`, which may donate it."""
    state, plan = jax.device_get((state, plan))
    rows, size = state.rows, int(state.system.block_size)
    owner = np.full(int(state.system.num_blocks), -1)
    filled = np.zeros_like(owner)
    seated = [row for row in plan.running.tolist() if row != NO_ROW]
    for row in seated:
        for index, block in enumerate(state.blocks.tables[row, : rows.held[row]].tolist()):
            owner[block] = rows.request[row]
            filled[block] = np.clip(rows.computed[row] - index * size, 0, size)
    waiting = np.flatnonzero(plan.waiting)
    order = waiting[np.argsort(plan.queue_order[waiting])]
    grants = plan.grants.tolist()
    return Snapshot(
        title=title, seats=[(int(rows.request[row]), grants[place])
                            for place, row in enumerate(seated)],
        prefills=plan.prefilling.tolist()[: len(seated)],
        waiting=[int(rows.request[row]) for row in order], owner=owner, filled=filled,
        block_size=size,
    )


def draw_snapshots(found: Sequence[Snapshot], names: Sequence[str], seats: int) -> Figure:
    """One line per snapshot: the seats, the queue, and the pool of KV blocks.

    Args:
        found: of one system.
        names: of the requests, by id.
        seats: how many there are.
    """
    with house_style():
        figure = new_figure(9.5, 0.52 * len(found) + 0.8)
        panels = figure.subplots(
            len(found), 2, squeeze=False,
            gridspec_kw={"width_ratios": [1.15 * (seats + 1), 1.05 * len(found[0].owner)]},
        )
        for (left, right), shot in zip(panels, found, strict=True):
            _draw_seats(left, shot, names, seats)
            _draw_pool(right, shot)
            left.set_ylabel(shot.title, rotation=0, ha="right", va="center")
        panels[0, 0].set_title("seats, and who waits")
        panels[0, 1].set_title(
            f"KV blocks of {found[0].block_size} positions: full colour = holds KV, pale = "
            "still empty"
        )
        used = sorted({request for shot in found for request, _ in shot.seats})
        handles = [Patch(facecolor=OWNERS[one % len(OWNERS)], label=names[one]) for one in used]
        figure.legend(handles=handles, loc="outside lower center", ncols=8)
    return figure


def _draw_seats(axis: Axes, shot: Snapshot, names: Sequence[str], seats: int) -> None:
    for seat in range(seats):
        taken = seat < len(shot.seats)
        colour = OWNERS[shot.seats[seat][0] % len(OWNERS)] if taken else "white"
        axis.add_patch(Rectangle(
            (seat + 0.04, 0.06), 0.92, 0.88, facecolor=colour, alpha=0.85, edgecolor=LIGHT_GREY,
        ))
        if taken:
            request, tokens = shot.seats[seat]
            kind = "prefill" if shot.prefills[seat] else "decode"
            text = f"{names[request]}\n{kind} {tokens}" if tokens else f"{names[request]}\nidle"
            axis.text(seat + 0.5, 0.5, text, ha="center", va="center", fontsize=8, color="white")
    line = ", ".join(names[request] for request in shot.waiting)
    axis.text(seats + 0.5, 0.5, f"waits: {line}" if line else "", ha="center", va="center",
              fontsize=8)
    _bare(axis, seats + 1)


def _draw_pool(axis: Axes, shot: Snapshot) -> None:
    for block, (owner, filled) in enumerate(zip(shot.owner, shot.filled, strict=True)):
        for offset in range(shot.block_size):
            colour = "white" if owner < 0 else OWNERS[owner % len(OWNERS)]
            width = 0.9 / shot.block_size
            axis.add_patch(Rectangle(
                (block + 0.05 + offset * width, 0.12), width, 0.76, facecolor=colour,
                alpha=0.9 if offset < filled else 0.25, edgecolor="none",
            ))
        axis.add_patch(Rectangle(
            (block + 0.05, 0.12), 0.9, 0.76, facecolor="none", edgecolor="#666666", linewidth=0.8,
        ))
    _bare(axis, len(shot.owner))


def _bare(axis: Axes, width: float) -> None:
    axis.set_xlim(0, width)
    axis.set_ylim(0, 1)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(visible=False)
    for side in axis.spines.values():
        side.set_visible(False)
