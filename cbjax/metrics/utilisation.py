"""Statistics over iterations: time, tokens and KV memory, each as a share of something named."""

import math
from collections.abc import Mapping

import polars as pl

from cbjax.metrics.window import Window


def share(part: float | None, whole: float | None) -> float | None:
    """part / whole, or None where there is no whole."""
    return None if part is None or not whole else part / whole


def total(values: pl.Series) -> float:
    """The sum of a numeric column, rounded once, so that it depends on no order; 0 if empty."""
    return math.fsum(values.drop_nulls().to_list())


def iteration_metrics(
    iterations: pl.DataFrame, window: Window
) -> Mapping[str, float | int | None | Mapping[str, float]]:
    """What the iterations of a measuring window did with their time and tokens.

    Args:
        iterations: the iterations table; those starting in the window count.
        window: an iteration reaching beyond its end is cut there for `busy_fraction`.

    Returns:
        iterations: how many, leaped ones included.
        busy_fraction: seconds with an iteration running / seconds of the window.
        host_ms: host milliseconds per iteration outside of the computation (scheduling, records).
        host_fraction: host seconds / seconds of host and computation together.
        padding_fraction: padded positions / all positions of the rungs that ran.
        mean_running: requests on a seat, averaged over the seconds with an iteration running.
        max_waiting: most requests left waiting after a scheduling decision, backlog included.
        backlog_iterations: iterations with requests beyond the window of waiting rows.
        waiting_s_by_reason: request-seconds of waiting, by what limited the iteration. Each
            iteration's waiting requests wait until the next one starts.
        All None (and an empty mapping) without iterations, as from an external endpoint.
    """
    if iterations.is_empty():
        names = (
            "iterations", "busy_fraction", "host_ms", "host_fraction", "padding_fraction",
            "mean_running", "max_waiting",
        )
        return dict.fromkeys((*names, "backlog_iterations")) | {"waiting_s_by_reason": {}}
    left = pl.col("waiting") + pl.col("backlog")
    until = pl.col("start_s").shift(-1).fill_null(pl.col("start_s") + pl.col("duration_s"))
    rows = iterations.with_columns(
        left=left,
        waited_s=left * (until - pl.col("start_s")),
        busy_s=(pl.min_horizontal(pl.col("start_s") + pl.col("duration_s"), pl.lit(window.end_s)))
        - pl.col("start_s"),
    ).filter(window.holds("start_s"))
    padded = total(rows["padded_tokens"])
    ran_s, host_s = total(rows["duration_s"]), total(rows["host_s"])
    host_ms = share(1e3 * host_s, total(rows["repeats"]))
    longest = rows["left"].max()
    waited = rows.filter(pl.col("waited_s") > 0).partition_by("limited_by", as_dict=True)
    reasons = {str(word): total(part["waited_s"]) for (word,), part in waited.items()}
    return {
        "iterations": int(total(rows["repeats"])),
        "busy_fraction": share(total(rows["busy_s"]), window.duration_s),
        "host_ms": host_ms,
        "host_fraction": share(host_s, host_s + ran_s),
        "padding_fraction": share(padded, padded + total(rows["scheduled_tokens"])),
        "mean_running": share(total(rows["running"] * rows["duration_s"]), ran_s),
        "max_waiting": int(longest or 0),  # type: ignore[arg-type]
        "backlog_iterations": int(total(rows.filter(pl.col("backlog") > 0)["repeats"])),
        "waiting_s_by_reason": dict(sorted(reasons.items())),
    }


def useful_token_fraction(iterations: pl.DataFrame, requests: pl.DataFrame) -> float | None:
    """First-time positions / all positions computed, over the whole run.

    A position is useful when its KV is computed for the first time; recomputing it after a
    preemption is not, and neither is padding, whether the ladder or the policy asked for it.
    """
    scheduled = total(iterations["scheduled_tokens"])
    computed = scheduled + total(iterations["padded_tokens"])
    return share(scheduled - total(requests["recomputed_tokens"]), computed)


def recomputed_fraction(requests: pl.DataFrame) -> float | None:
    """Positions computed again after preemptions / all positions computed for these requests."""
    recomputed = total(requests["recomputed_tokens"])
    first = total(requests["prompt_tokens"]) + total(requests["output_tokens"])
    return share(recomputed, first + recomputed)


def kv_utilisation(
    iterations: pl.DataFrame, memory: pl.DataFrame | None, window: Window
) -> float | None:
    """Positions holding live KV / positions in used blocks, weighted by iteration time.

    PagedAttention's "useful share of KV memory". Reservation ahead of need lowers it, and so does
    the unfilled end of each last block. None where positions were not recorded or none were used.
    """
    if memory is None:
        return None
    rows = iterations.join(memory, on="iteration").filter(window.holds("start_s"))
    duration = rows["duration_s"]
    live = total(rows["live_tokens"] * duration)
    return share(live, total(rows["used_blocks"] * rows["block_size"] * duration))


def wasted_tokens(requests: pl.DataFrame, schedule: pl.DataFrame | None) -> int | None:
    """Positions computed for requests that failed or were aborted; None without a schedule.

    Args:
        requests: a table with `request_id` and `outcome`.
        schedule: the grants of the run.
    """
    if schedule is None:
        return None
    lost = requests.filter(pl.col("outcome").is_in(["failed", "aborted"]))
    return int(schedule.join(lost, on="request_id", how="semi")["tokens"].sum())
