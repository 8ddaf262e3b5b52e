"""Names, units and digits of metrics and settings, the same in tables and figures."""

from collections.abc import Mapping

LATENCY_TITLES: Mapping[str, str] = {
    "ttft_s": "TTFT",
    "ttft_sent_s": "TTFT from send",
    "itl_s": "ITL",
    "tpot_s": "TPOT",
    "max_itl_s": "longest ITL of an answer",
    "e2e_s": "E2E latency",
    "queue_s": "queue",
}
TITLES: Mapping[str, str] = {
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "prompt and output tokens/s",
    "requests_per_s": "requests/s",
    "goodput_requests_per_s": "goodput (good requests/s)",
    "slo_attainment": "SLO attainment (% of requests)",
    "host_ms": "host time an iteration (ms)",
    "host_fraction": "host (% of an iteration)",
    "padding_fraction": "padding (% of positions)",
    "useful_token_fraction": "useful (% of positions)",
    "busy_fraction": "busy (% of time)",
    "kv_utilisation": "KV in use holding tokens (%)",
    "kv_waste": "KV in use holding nothing (%)",
    "preemptions": "preemptions",
    "recomputed_tokens": "recomputed tokens",
    "cached_fraction": "prompt tokens found again (%)",
    "recomputed_fraction": "recomputed (% of positions)",
    "lost_fraction": "requests without a full answer (%)",
    "queue_growth": "arrivals that only lengthen the queue (%)",
    "wasted_tokens": "wasted tokens",
    "iterations": "iterations",
    "mean_running": "mean requests running",
    "max_waiting": "most requests waiting",
    "completed": "completed requests",
    "rejected": "refused requests",
    "failed": "failed requests",
    "environment.compile_s": "compiling before the clock (s)",
    "environment.compile_count": "compiled programs",
    "environment.attention_ms": "attention, a layer, measured (ms)",
    "paper.fetches": "block fetches a sequence, counted",
    "paper.kv_read_us": "KV read, roofline on paper (us)",
    "environment.block_table_bytes": "block tables (bytes)",
}
SETTING_TITLES: Mapping[str, str] = {
    "policy.name": "policy",
    "kv.block_size": "KV block size (tokens)",
    "block_size": "KV block size (tokens)",
    "kv.num_blocks": "KV blocks",
    "budget": "token budget (tokens)",
    "seats": "seats",
    "rungs": "rungs of the ladder",
    "backend.megastep": "most iterations of a dispatch (K)",
    "policy.max_num_batched_tokens": "token budget (tokens)",
    "policy.max_num_seqs": "seats",
    "workload.arrivals.rate": "offered load (requests/s)",
    "offered_requests_per_s": "offered load (requests/s)",
    "workload.arrivals.concurrency": "concurrent users",
    "workload.arrivals.burstiness": "burstiness (1 = Poisson, below it burstier)",
    "workload.sessions.turns.value": "turns of a conversation",
    "workload.prediction_error": "prediction error (sigma of the logarithm)",
}
PERCENT = {
    "slo_attainment",
    "host_fraction",
    "padding_fraction",
    "useful_token_fraction",
    "busy_fraction",
    "kv_utilisation",
    "kv_waste",
    "cached_fraction",
    "recomputed_fraction",
    "lost_fraction",
    "queue_growth",
}
ABSENT = "–"


def metric_title(metric: str) -> str:
    """A metric's name for people, with its unit; ITL and TPOT are shown in milliseconds.

    Args:
        metric: as in `collect_runs`, e.g. "ttft_s.p95".
    """
    name, _, statistic = metric.partition(".")
    if name in LATENCY_TITLES:
        return f"{LATENCY_TITLES[name]} {statistic} ({'ms' if _in_ms(name) else 's'})"
    return TITLES.get(metric, metric)


def setting_title(setting: str) -> str:
    """A setting's name for people, with its unit; the dotted name itself if it has no other."""
    return SETTING_TITLES.get(setting, setting)


def number(value: float | int | None, metric: str) -> str:
    """A metric's value in the unit of its title, with three significant digits; counts in full."""
    if value is None:
        return ABSENT
    name = metric.partition(".")[0]
    if name in PERCENT:
        return f"{unit_of(metric) * value:.1f}"
    if _in_ms(name):
        return significant(unit_of(metric) * value)
    measured = name in LATENCY_TITLES or name.endswith("_per_s")
    return significant(float(value) if measured or value != int(value) else int(value))


def unit_of(metric: str) -> float:
    """What a metric's value is multiplied with to be in the unit of its title."""
    name = metric.partition(".")[0]
    return 100.0 if name in PERCENT else 1000.0 if _in_ms(name) else 1.0


def significant(value: float | int) -> str:
    """Three significant digits, never in exponent form; an int in full."""
    if isinstance(value, int):
        return f"{value:,}"
    magnitude = abs(value)
    decimals = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3
    return f"{value:,.{decimals}f}"


def _in_ms(name: str) -> bool:
    return name in ("itl_s", "tpot_s", "max_itl_s")
