"""The summary of a run: one dictionary, ready for `summary.json`, with its rules stated in it."""

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from cbjax.metrics.batching import classify_batching
from cbjax.metrics.latency import (
    LATENCIES_OF,
    ONE_TOKEN_RULE,
    OUTCOMES,
    PERCENTILE_RULE,
    answers_were_streamed,
    describe,
    inter_token_gaps,
    outcome,
    request_latencies,
)
from cbjax.metrics.slo import Slo, as_slo, meets
from cbjax.metrics.stability import queue_stability
from cbjax.metrics.utilisation import (
    iteration_metrics,
    kv_utilisation,
    recomputed_fraction,
    share,
    total,
    useful_token_fraction,
    wasted_tokens,
)
from cbjax.metrics.window import Window, whole_run

LATENCIES = ("ttft_s", "ttft_sent_s", "itl_s", "tpot_s", "max_itl_s", "e2e_s", "queue_s")
NOT_STREAMED = "answers were delivered whole, so there are no gaps between tokens"
NO_TOKEN_TIMES = "token times were not recorded (record=tokens)"


def summarise(
    requests: pl.DataFrame,
    iterations: pl.DataFrame,
    *,
    schedule: pl.DataFrame | None = None,
    memory: pl.DataFrame | None = None,
    slo: Slo | Mapping[str, Any] | None = None,
    window: tuple[float, float] | None = None,
    backend: str,
    offered_rate: float | None = None,
    itl_s: Mapping[str, float | int | None] | None = None,
) -> dict[str, Any]:
    """Summarise one run.

    Args:
        requests: the requests table, R rows.
        iterations: the iterations table; empty for an external endpoint.
        schedule: grants; needed for `wasted_tokens`.
        memory: live KV positions; needed for `kv_utilisation` and `kv_waste`.
        slo: bounds in seconds; none means that every completed request is good.
        window: (start, end) in seconds of the run's clock. Requests count by scheduled arrival,
            tokens by delivery, iterations by start. None: the whole run, from the first scheduled
            arrival to the last end, ramp and tail included.
        backend: "model", "simulated", "endpoint", ...
        offered_rate: requests per second that the workload offers; None where it offers no rate
            (all at once, closed loop).
        itl_s: the gaps between tokens, described as by `describe`, of a run that counted them
            but kept no token's time; of the whole run, whatever the window.

    Returns:
        `backend`, `offered_rate`, `window`, `slo`, `batching` (see `classify_batching`), `rules`
        (how values were computed), `not_measured` (metric -> why it is absent) and `metrics`, whose
        names end in their units.

    Raises:
        ValueError: the window is empty or reversed, or the SLO has an unknown field.
    """
    bounds = as_slo(slo)
    measured = Window(*window) if window is not None else whole_run(requests)
    judged = requests.with_columns(outcome())
    arrived = judged.filter(measured.holds("scheduled_arrival_s"))
    latencies = request_latencies(arrived)
    completed = arrived.filter(pl.col("outcome") == "completed")
    not_measured = _not_measured(completed, itl_s is not None)
    counts = {name: int((arrived["outcome"] == name).sum()) for name in OUTCOMES}
    stability = queue_stability(arrived)
    utilisation = kv_utilisation(iterations, memory, measured)

    metrics: dict[str, Any] = _latency_metrics(latencies, completed, not_measured, itl_s)
    metrics |= _throughput(judged, measured)
    metrics |= {
        "completed": counts["completed"],
        "rejected": counts["refused"],
        "failed": counts["failed"],
        "aborted": counts["aborted"],
        "unfinished": counts["unfinished"],
        "preemptions": int(arrived["preemptions"].sum()),
        "swaps": int(arrived["swaps"].sum()),
        "recomputed_tokens": int(arrived["recomputed_tokens"].sum()),
        "cached_prompt_tokens": int(arrived["cached_prompt_tokens"].sum()),
        "cached_fraction": share(
            total(arrived["cached_prompt_tokens"]), total(arrived["prompt_tokens"])
        ),
        "recomputed_fraction": recomputed_fraction(arrived),
        "lost_fraction": share(len(arrived) - counts["completed"], len(arrived)),
        "queue_growth": None if stability is None else stability.growth,
        "wasted_tokens": wasted_tokens(arrived, schedule),
        "useful_token_fraction": useful_token_fraction(iterations, requests),
        "kv_utilisation": utilisation,
        "kv_waste": None if utilisation is None else 1.0 - utilisation,
    }
    metrics |= iteration_metrics(iterations, measured)
    metrics |= _goodput(bounds, latencies, measured.duration_s, not_measured)
    finite_rate = offered_rate is not None and math.isfinite(offered_rate)
    return {
        "backend": backend,
        "offered_rate": offered_rate if finite_rate else None,
        "window": dict(measured.stated()),
        "slo": dict(bounds.stated()),
        "batching": classify_batching(arrived),
        "rules": {
            "percentiles": PERCENTILE_RULE,
            "one_token_answers": ONE_TOKEN_RULE,
            "latencies_of": LATENCIES_OF,
        },
        "not_measured": not_measured,
        "metrics": metrics,
    }


def _not_measured(completed: pl.DataFrame, counted: bool) -> dict[str, str]:
    if answers_were_streamed(completed) is False:
        return dict.fromkeys(("itl_s", "tpot_s", "max_itl_s"), NOT_STREAMED)
    if "token_times_s" not in completed.columns and not counted:
        return {"itl_s": NO_TOKEN_TIMES}
    return {}


def _latency_metrics(
    latencies: pl.DataFrame, completed: pl.DataFrame, not_measured: Mapping[str, str],
    itl_s: Mapping[str, float | int | None] | None,
) -> dict[str, Any]:
    of_completed = latencies.filter(pl.col("outcome") == "completed")
    described: dict[str, Any] = {}
    for name in LATENCIES:
        if name in not_measured:
            described[name] = describe(pl.Series([], dtype=pl.Float64))
        elif name == "itl_s" and "token_times_s" not in completed.columns and itl_s is not None:
            described[name] = dict(itl_s)
        elif name == "itl_s":
            described[name] = describe(inter_token_gaps(completed))
        else:
            described[name] = describe(of_completed[name])
    return described


def _throughput(requests: pl.DataFrame, window: Window) -> dict[str, float | None]:
    """Rates over the window; only completed requests count, as in vLLM and SGLang."""
    completed = requests.filter(pl.col("outcome") == "completed")
    ended = completed.filter(window.holds("finished_s"))
    started = completed.filter(window.holds("first_token_s"))
    if "token_times_s" in completed.columns:
        times = completed.select(pl.col("token_times_s").explode())
        output = float(len(times.filter(window.holds("token_times_s"))))
    else:
        output = total(ended["output_tokens"])
    return {
        "output_tokens_per_s": share(output, window.duration_s),
        "total_tokens_per_s": share(output + total(started["prompt_tokens"]), window.duration_s),
        "requests_per_s": share(len(ended), window.duration_s),
    }


def _goodput(
    slo: Slo, latencies: pl.DataFrame, duration_s: float, not_measured: Mapping[str, str]
) -> dict[str, Any]:
    """Good requests per second of the window, and as a share of all that arrived in it.

    None when the SLO bounds something that was not measured: it is then unknown who was good.
    """
    judged = meets(slo, latencies)
    arrived = len(judged)
    unknown = sorted(set(slo.bounds()) & set(not_measured))
    good = None if unknown else int(judged["good"].sum())
    return {
        "goodput_requests_per_s": share(good, duration_s),
        "slo_attainment": share(good, arrived),
        "slo_attainment_by_bound": {
            name: None if name in unknown else share(int(judged[name].sum()), arrived)
            for name in slo.bounds()
        },
    }
