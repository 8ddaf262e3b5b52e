"""From the iterations of real runs to the numbers of a `table` cost: a time per padded shape.

Where a computation covers its whole rung, its time is a constant of the rung and a part that grows
with the context. `costs.fitted` has one slope over all rungs instead, which is coarser.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

LEAST_ROWS = 10


def fit_rungs(runs: Sequence[tuple[pl.DataFrame, pl.DataFrame]]) -> Mapping[str, list]:
    """Least squares over all iterations: seconds of each rung, seconds per position of context.

    Args:
        runs: the iterations and the memory table of each run.

    Returns:
        `tokens` of the rungs that were used, `context` (0 and the greatest that was seen) and
        `seconds` (a pair per rung): the arguments of `costs.table`. Simulate with `padded=True`.

    Raises:
        ValueError: fewer than ten iterations that took time.

    Source: iterations are weighted by 1 / the mean duration of their rung, so that relative errors
    count and the mean of a rung is met.
    """
    rows = pl.concat([iterations.join(memory, on="iteration") for iterations, memory in runs])
    rows = rows.filter((pl.col("duration_s") > 0) & ~pl.col("compiled"))
    if len(rows) < LEAST_ROWS:
        raise ValueError(
            f"iterations: {len(rows)} rows took time; give runs of at least {LEAST_ROWS}"
        )
    size = (rows["scheduled_tokens"] + rows["padded_tokens"]).to_numpy()
    context, spent = rows["live_tokens"].to_numpy(), rows["duration_s"].to_numpy()
    sizes, rung = np.unique(size, return_inverse=True)
    weight = (np.bincount(rung) / np.bincount(rung, spent))[rung]
    greatest = max(float(context.max()), 1.0)
    design = np.eye(len(sizes))[rung]
    with_context = np.column_stack([design, context / greatest])
    found = np.linalg.lstsq(with_context * weight[:, None], spent * weight, rcond=None)[0]
    if found[-1] < 0 or np.any(found[:-1] <= 0):
        # Noise alone makes a step cheaper by a longer context: then the rungs' means are the fit.
        found = np.append(np.bincount(rung, spent) / np.bincount(rung), 0.0)
    seconds, slope = found[:-1].tolist(), float(found[-1])
    tokens = sizes.astype(float).tolist()
    if len(tokens) == 1:
        tokens, seconds = [tokens[0], tokens[0] + 1.0], seconds * 2
    return {
        "tokens": tokens, "context": [0.0, greatest],
        "seconds": [[one, one + slope] for one in seconds],
    }


def host_seconds(runs: Sequence[pl.DataFrame]) -> float:
    """Mean seconds between an iteration's end and the next one's start while requests are there.

    Args:
        runs: the iterations table of each run.
    """
    gaps = []
    for rows in runs:
        left = rows["running"] - rows["finished"] + rows["waiting"] + rows["backlog"]
        gap = rows["start_s"].shift(-1) - rows["start_s"] - rows["duration_s"]
        gaps.append(gap.filter(left > 0).drop_nulls())
    mean = pl.concat(gaps).mean()
    return max(0.0, float(mean)) if mean is not None else 0.0  # type: ignore[arg-type]
