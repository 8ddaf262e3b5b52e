"""Every latency of this project, defined once.

Measuring tools give the same words different meanings: TPOT contains the first token in guidellm
and not in vLLM, ITL is a gap between chunks in vLLM, between tokens in inference-perf and a mean
per request in AIPerf. Each function below says what is meant here and which tools agree. Two rules
hold everywhere: a value that is not defined is absent (null), never 0; and times are rounded to the
nanosecond, the resolution of the clocks, so that a bound met exactly counts as met.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

CLOCK_DECIMALS = 9

PERCENTILE_RULE = "linear interpolation between order statistics (numpy 'linear')"
ONE_TOKEN_RULE = (
    "an answer of one token has no gap: it is absent from ITL and TPOT statistics and meets any "
    "bound on them"
)
LATENCIES_OF = "completed requests whose scheduled arrival lies in the measuring window"

OUTCOMES = ("completed", "refused", "failed", "aborted", "unfinished")


def outcome() -> pl.Expr:
    """What became of a request, from `finish_reason` and `error`.

    Returns:
        An expression over `requests` giving "refused" (at the door), "failed" (accepted, then ended
        by an error), "aborted" (its user gave up), "unfinished" (still running when recording
        stopped) or "completed" (any other finish reason).
    """
    reason = pl.col("finish_reason")
    return (
        pl.when(reason == "refused")
        .then(pl.lit("refused"))
        .when((reason == "error") | pl.col("error").is_not_null())
        .then(pl.lit("failed"))
        .when(reason.str.starts_with("abort"))
        .then(pl.lit("aborted"))
        .when(reason.is_null())
        .then(pl.lit("unfinished"))
        .otherwise(pl.lit("completed"))
        .alias("outcome")
    )


def ttft_s() -> pl.Expr:
    """Time to first token, from the *scheduled* arrival: first_token_s - scheduled_arrival_s.

    A client that sends late, or waits for a free connection, does not make the server look faster
    (no coordinated omission). MLPerf counts so; DistServe and simulators too, since in them a
    request is sent when it arrives.
    """
    return (pl.col("first_token_s") - pl.col("scheduled_arrival_s")).alias("ttft_s")


def ttft_sent_s() -> pl.Expr:
    """Time to first token, from the send: first_token_s - submitted_s.

    What vLLM, SGLang, AIPerf, guidellm and inference-perf call TTFT (they differ in whether an
    empty first chunk counts; here only a token does).
    """
    return (pl.col("first_token_s") - pl.col("submitted_s")).alias("ttft_sent_s")


def e2e_s() -> pl.Expr:
    """End-to-end latency: finished_s - scheduled_arrival_s (MLPerf's latency).

    With delivery at the end of a batch `finished_s` is the moment of delivery. vLLM's and SGLang's
    E2EL counts from the send instead; the two are equal when the client is never late.
    """
    return (pl.col("finished_s") - pl.col("scheduled_arrival_s")).alias("e2e_s")


def queue_s() -> pl.Expr:
    """Queueing time: admitted_s - scheduled_arrival_s.

    Up to the start of the iteration in which the request is first given a seat; the scheduling
    delay of Sarathi-Serve and Vidur. Later waits of a preempted request are not in it.
    """
    return (pl.col("admitted_s") - pl.col("scheduled_arrival_s")).alias("queue_s")


def tpot_s(requests: pl.DataFrame) -> pl.Expr:
    """Time per output token after the first: (last - first) / (n - 1), one value per request.

    So vLLM, SGLang, inference-perf, DistServe and MLPerf; AIPerf calls it ITL. Absent for n = 1
    (where DistServe says 0 and MLPerf's LoadGen divides by -1). n and `last` come from the token
    times; where those were not kept, from `output_tokens` and `finished_s`.
    """
    if "token_times_s" in requests.columns:
        last, count = pl.col("token_times_s").list.last(), pl.col("token_times_s").list.len()
    else:
        last, count = pl.col("finished_s"), pl.col("output_tokens")
    gaps = count.cast(pl.Int64) - 1
    span = last - pl.col("first_token_s")
    return pl.when(gaps >= 1).then(span / gaps).otherwise(None).alias("tpot_s")


def request_latencies(requests: pl.DataFrame) -> pl.DataFrame:
    """All per-request latencies in seconds.

    Args:
        requests: the requests table, R rows.

    Returns:
        R rows: request_id, class, outcome, ttft_s, ttft_sent_s, tpot_s, max_itl_s, e2e_s, queue_s.
        Values are null where not defined; they are given for every request that has them, whatever
        its outcome, so statistics choose their own population.
    """
    seconds = [ttft_s(), ttft_sent_s(), tpot_s(requests), pl.col("max_itl_s"), e2e_s(), queue_s()]
    return requests.select(
        "request_id", "class", outcome(), *[value.round(CLOCK_DECIMALS) for value in seconds]
    )


def inter_token_gaps(requests: pl.DataFrame) -> np.ndarray:
    """ITL: the gaps between consecutive tokens of a request, pooled over requests, in seconds.

    Per token, as inference-perf; vLLM and GenAI-Perf take gaps between chunks, equal where a chunk
    is a token. Tokens handed over at one moment have gaps of 0 between them. The time to the first
    token is not a gap. Pooling weighs long answers more, which is why the mean of ITL is not the
    mean of TPOT.

    Args:
        requests: a requests table with `token_times_s`.

    Returns:
        One value for each of the sum of (n - 1) gaps, in row order.
    """
    gaps = [np.diff(times) for times in requests["token_times_s"].drop_nulls().to_list()]
    pooled = np.concatenate(gaps) if gaps else np.empty(0)
    return np.round(pooled.astype(np.float64), CLOCK_DECIMALS)


def answers_were_streamed(requests: pl.DataFrame) -> bool | None:
    """Whether tokens reached users one after another or whole answers at once.

    Returns:
        True if any answer has tokens at two different moments; False if there are answers of two or
        more tokens and every one of them came at a single moment (ITL and TPOT then say nothing and
        are reported as not measured); None if no answer is long enough to tell.
    """
    if "token_times_s" not in requests.columns:
        several = requests.filter(pl.col("output_tokens") > 1)
        spread = several["max_itl_s"] > 0
    else:
        times = requests["token_times_s"]
        several = requests.filter(times.list.len() > 1)
        times = several["token_times_s"]
        spread = times.list.last() > times.list.first()
    return None if several.is_empty() else bool(spread.any())


def describe(values: np.ndarray | pl.Series) -> Mapping[str, float | int | None]:
    """Mean, p50, p90, p95, p99, max and count of a sample, in the sample's unit.

    Percentiles are linearly interpolated, as in vLLM, SGLang and AIPerf (MLPerf takes the order
    statistic floor(n p) instead). They are given for samples of any size, so `count` stands beside
    them: a p99 of five values is close to their maximum.

    Returns:
        All values None, and count 0, for an empty sample.
    """
    if isinstance(values, pl.Series):
        values = values.drop_nulls().to_numpy()
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    if len(values) == 0:
        return dict.fromkeys(names) | {"count": 0}
    points = np.percentile(values, [50, 90, 95, 99, 100], method="linear")
    numbers = [float(np.mean(values)), *(float(point) for point in points)]
    return dict(zip(names, numbers, strict=True)) | {"count": len(values)}
