"""Which kind of batching a run did, told from its rows alone."""

from typing import Literal

import numpy as np
import polars as pl

Batching = Literal["static", "dynamic", "continuous"]

# A wait shorter than this share of a batch's time is the loop's own overhead.
NOTICEABLE = 0.01


def classify_batching(requests: pl.DataFrame) -> Batching | None:
    """Tell static, dynamic and continuous batching apart by when requests began and ended.

    *Continuous*: some request began while another that had begun earlier was still running (Orca's
    iteration-level scheduling). Otherwise a batch is fixed while it runs: *dynamic* if requests
    were left waiting while nothing ran, so that a batch could gather (Triton's queue delay), else
    *static*. How answers are delivered, token by token or whole, plays no part.

    Args:
        requests: the requests table; of it `scheduled_arrival_s`, `admitted_s` and `finished_s` of
            the requests that ran.

    Returns:
        None where the rows cannot tell: nobody entered a running batch, and nobody waited although
        someone had just left one (one user at a time looks alike under all three).
    """
    ran = requests.drop_nulls(["admitted_s", "finished_s"]).sort("admitted_s")
    batches = ran.group_by("admitted_s", maintain_order=True).agg(
        came_s=pl.col("scheduled_arrival_s").min(), left_s=pl.col("finished_s").min(),
        ended_s=pl.col("finished_s").max(),
    )
    if batches.is_empty():
        return None
    began, came, ended = (batches[name].to_numpy() for name in ("admitted_s", "came_s", "ended_s"))
    idle_from = np.concatenate([[-np.inf], np.maximum.accumulate(ended)[:-1]])
    if np.any(began < idle_from):
        return "continuous"
    gathered = began - np.maximum(idle_from, came)
    if np.any(gathered > NOTICEABLE * np.median(ended - began)):
        return "dynamic"
    # Someone left the batch, a seat was free, and who had come by then had to wait for its end.
    left = batches["left_s"].to_numpy()[:-1]
    return "static" if np.any((left < ended[:-1]) & (came[1:] < ended[:-1])) else None
