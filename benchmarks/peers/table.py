"""From runs to the rows of the table, and the table as text."""

import statistics
from collections.abc import Sequence

import numpy as np

from benchmarks.peers.measure import Run

COLUMNS = (
    "peer", "wall s", "CPU s", "tokens/s", "tokens/CPU s", "peak GB", "TTFT p50", "TTFT p95",
    "ITL p50 ms", "ITL p95 ms", "agrees",
)


def row(name: str, runs: Sequence[Run], ours: Sequence[Run]) -> list[str]:
    """One line: medians, with the least and greatest of the runs behind wall and CPU seconds.

    Args:
        name: of the peer.
        runs: its runs of the workload.
        ours: runs of ours, to compare tokens with; none: nothing to compare with.
    """
    tokens = runs[0].num_tokens
    wall, cpu = [one.wall_s for one in runs], [one.cpu_s for one in runs]
    ttft = [moment for one in runs for moment in one.ttft_s()]
    itl = [1e3 * gap for one in runs for gap in one.itl_s()]
    same = f"{100 * agreement(runs[0], ours[0]):.1f} %" if ours else "-"
    return [
        name, _spread(wall), _spread(cpu), f"{tokens / statistics.median(wall):.0f}",
        f"{tokens / statistics.median(cpu):.0f}", f"{max(r.peak_bytes for r in runs) / 1e9:.2f}",
        *_percentiles(ttft, 2), *_percentiles(itl, 0), same,
    ]


def agreement(run: Run, other: Run) -> float:
    """Share of tokens that are equal at their place of their request."""
    pairs = [
        pair
        for mine, theirs in zip(run.tokens, other.tokens, strict=True)
        for pair in zip(mine, theirs, strict=True)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table as it stands in docs/performance.md."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def _percentiles(values: Sequence[float], digits: int) -> list[str]:
    if not values:
        return ["-", "-"]
    return [f"{np.percentile(values, q):.{digits}f}" for q in (50, 95)]
