"""Latencies against values computed by hand, and the kinds of mistakes other tools made."""

import numpy as np
import polars as pl
import pytest

from cbjax.metrics import REQUEST_COLUMNS, describe, inter_token_gaps, outcome, request_latencies
from cbjax.metrics.latency import answers_were_streamed
from cbjax.metrics.tables import frame

DEFAULTS = {
    "request_id": 0,
    "class": "",
    "priority": 0,
    "scheduled_arrival_s": 0.0,
    "submitted_s": 0.0,
    "prompt_tokens": 4,
    "cached_prompt_tokens": 0,
    "preemptions": 0,
    "swaps": 0,
    "recomputed_tokens": 0,
    "finish_reason": "stop",
}


def request(times: list[float], **given) -> dict:
    """One completed request that got its tokens at `times`."""
    gaps = [round(b - a, 9) for a, b in zip(times, times[1:], strict=False)]
    filled = {
        "admitted_s": 0.0,
        "first_token_s": times[0] if times else None,
        "finished_s": times[-1] if times else None,
        "output_tokens": len(times),
        "max_itl_s": max(gaps) if gaps else None,
        "token_times_s": times,
    }
    return DEFAULTS | filled | given


def requests_table(*rows: dict) -> pl.DataFrame:
    ordered = [tuple(row.get(name) for name in REQUEST_COLUMNS) for row in rows]
    return frame(ordered, REQUEST_COLUMNS)


def test_time_to_first_token_is_not_a_gap():
    """FAULTS I1: token times 1.0, 1.1, 1.2 from 0 give TTFT 1.0 and ITL [0.1, 0.1]."""
    table = requests_table(request([1.0, 1.1, 1.2]))
    assert request_latencies(table)["ttft_s"].to_list() == [1.0]
    assert inter_token_gaps(table).tolist() == [0.1, 0.1]


def test_tpot_divides_by_the_gaps_and_not_by_the_tokens():
    """FAULTS I4: (1.2 - 1.0) / (3 - 1) = 0.1, per request and not a running mean."""
    table = requests_table(request([1.0, 1.1, 1.2]), request([2.0, 2.6, 3.0, 4.5], request_id=1))
    assert request_latencies(table)["tpot_s"].to_list() == pytest.approx([0.1, 2.5 / 3])


def test_tpot_without_token_times_agrees():
    table = requests_table(request([1.0, 1.1, 1.2]), request([1.0], request_id=1))
    values = request_latencies(table.drop("token_times_s"))["tpot_s"].to_list()
    assert values == [0.1, None]


def test_an_answer_of_one_token_has_no_tpot_and_no_gap():
    table = requests_table(request([1.0]), request([], request_id=1, finish_reason="abort"))
    latencies = request_latencies(table)
    assert latencies["tpot_s"].to_list() == [None, None]
    assert latencies["ttft_s"].to_list() == [1.0, None]
    assert inter_token_gaps(table).tolist() == []


def test_clocks_start_at_the_scheduled_arrival_and_at_the_send():
    table = requests_table(
        request([1.5, 2.0], scheduled_arrival_s=0.5, submitted_s=0.75, admitted_s=1.0)
    )
    row = request_latencies(table).row(0, named=True)
    assert row["ttft_s"] == 1.0
    assert row["ttft_sent_s"] == 0.75
    assert row["e2e_s"] == 1.5
    assert row["queue_s"] == 0.5


def test_gaps_are_pooled_per_token_so_long_answers_weigh_more():
    table = requests_table(request([0.0, 1.0]), request([0.0, 0.1, 0.2, 0.3], request_id=1))
    assert describe(inter_token_gaps(table))["mean"] == pytest.approx(1.3 / 4)
    assert describe(request_latencies(table)["tpot_s"])["mean"] == pytest.approx(1.1 / 2)


def test_whole_answers_are_told_from_streams():
    streamed, whole, short = request([1.0, 2.0]), request([2.0, 2.0]), request([1.0])
    for drop in ([], ["token_times_s"]):
        assert answers_were_streamed(requests_table(streamed, whole).drop(drop)) is True
        assert answers_were_streamed(requests_table(whole, short).drop(drop)) is False
        assert answers_were_streamed(requests_table(short).drop(drop)) is None
        assert answers_were_streamed(requests_table().drop(drop)) is None


def test_percentiles_interpolate_linearly():
    """FAULTS I11: the rule is fixed by values, also for p99 of five samples."""
    values = describe(np.array([5.0, 1.0, 2.0, 4.0, 3.0]))
    assert values == {
        "mean": 3.0,
        "p50": 3.0,
        "p90": pytest.approx(4.6),
        "p95": pytest.approx(4.8),
        "p99": pytest.approx(4.96),
        "max": 5.0,
        "count": 5,
    }


def test_an_empty_sample_has_no_values_rather_than_zeros():
    assert describe(np.empty(0)) == dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max")) | {
        "count": 0
    }


def test_outcomes():
    table = requests_table(
        request([1.0], finish_reason="length"),
        request([], finish_reason="refused", error="too long"),
        request([1.0], finish_reason="error", error="out of memory"),
        request([1.0], finish_reason="stop", error="connection lost"),
        request([1.0], finish_reason="abort"),
        request([1.0], finish_reason=None, finished_s=None),
    )
    assert table.select(outcome()).to_series().to_list() == [
        "completed",
        "refused",
        "failed",
        "failed",
        "aborted",
        "unfinished",
    ]
