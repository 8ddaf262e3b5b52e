"""The summary of small runs against values computed by hand."""

import json
import math

import polars as pl
import pytest

from cbjax.metrics import IterationEvent, Recorder, Slo, as_slo, meets, request_latencies, summarise


def small_run() -> Recorder:
    """Two seats, blocks of 4. Request 0 and 1 run, 2 waits, 3 is refused, 4 fails after 1 token."""
    recorder = Recorder()
    for request_id, arrival_s in enumerate((0.0, 0.0, 0.0, 0.0, 3.0)):
        recorder.submitted(
            request_id,
            class_name="chat",
            scheduled_arrival_s=arrival_s,
            submitted_s=arrival_s,
            prompt_tokens=4,
        )
    recorder.refused(3, 0.0, "prompt too long")
    shared = {"duration_s": 1.0, "block_size": 4, "rung": "8x2", "rung_tokens": 8}
    recorder.iteration(
        IterationEvent(
            start_s=0.0,
            admitted=[0, 1],
            grants=[(0, 4, 4, "prefill"), (1, 4, 4, "prefill")],
            emitted=[0, 1],
            running=2,
            waiting=1,
            used_blocks=2,
            free_blocks=2,
            live_tokens=8,
            limited_by="seats",
            **shared,
        )
    )
    recorder.iteration(
        IterationEvent(
            start_s=1.0,
            grants=[(0, 1, 1, "decode"), (1, 1, 1, "decode")],
            emitted=[0, 1],
            finished=[(0, "length")],
            running=2,
            waiting=1,
            used_blocks=4,
            free_blocks=0,
            live_tokens=10,
            limited_by="seats",
            **shared,
        )
    )
    recorder.iteration(
        IterationEvent(
            start_s=2.5,
            admitted=[2],
            grants=[(1, 1, 1, "decode"), (2, 4, 4, "prefill")],
            emitted=[1, 2],
            finished=[(1, "length"), (2, "stop")],
            running=2,
            used_blocks=3,
            free_blocks=1,
            live_tokens=11,
            limited_by="queue_empty",
            **shared,
        )
    )
    recorder.iteration(
        IterationEvent(
            start_s=4.0,
            admitted=[4],
            grants=[(4, 4, 4, "prefill")],
            emitted=[4],
            running=1,
            used_blocks=1,
            free_blocks=3,
            live_tokens=4,
            limited_by="queue_empty",
            **shared,
        )
    )
    recorder.ended(4, 5.5, "error", error="worker lost")
    return recorder


def summary_of(recorder: Recorder, **options) -> dict:
    tables = recorder.tables()
    return summarise(
        tables.requests,
        tables.iterations,
        schedule=tables.schedule,
        memory=tables.memory,
        backend="test",
        **options,
    )


def test_small_run_by_hand():
    summary = summary_of(small_run(), offered_rate=2.0)
    metrics = summary["metrics"]
    assert summary["offered_rate"] == 2.0
    assert summary["window"] == {
        "start_s": 0.0,
        "end_s": 5.5,
        "duration_s": 5.5,
        "rule": "whole run, ramp and tail included",
    }
    # Completed: 0 (tokens at 1, 2), 1 (1, 2, 3.5), 2 (3.5).
    assert metrics["ttft_s"]["mean"] == pytest.approx((1 + 1 + 3.5) / 3)
    assert metrics["itl_s"]["max"] == 1.5
    assert metrics["itl_s"]["mean"] == pytest.approx((1 + 1 + 1.5) / 3)
    assert metrics["tpot_s"]["count"] == 2
    assert metrics["tpot_s"]["max"] == 1.25
    assert metrics["e2e_s"]["max"] == 3.5
    assert metrics["queue_s"]["max"] == 2.5
    assert metrics["output_tokens_per_s"] == pytest.approx(6 / 5.5)
    assert metrics["total_tokens_per_s"] == pytest.approx(18 / 5.5)
    assert metrics["requests_per_s"] == pytest.approx(3 / 5.5)
    counted = ("completed", "rejected", "failed", "aborted", "unfinished", "preemptions")
    assert [metrics[name] for name in counted] == [3, 1, 1, 0, 0, 0]
    assert metrics["iterations"] == 4
    assert metrics["padding_fraction"] == pytest.approx(1 - 19 / 32)
    assert metrics["useful_token_fraction"] == pytest.approx(19 / 32)
    assert metrics["busy_fraction"] == pytest.approx(4 / 5.5)
    assert metrics["kv_utilisation"] == pytest.approx(33 / 40)
    assert metrics["kv_waste"] == pytest.approx(7 / 40)
    # 2, 2, 2 and 1 requests in iterations of a second each.
    assert metrics["mean_running"] == pytest.approx(7 / 4)
    assert metrics["max_waiting"] == 1
    assert metrics["waiting_s_by_reason"] == {"seats": 2.5}
    assert metrics["wasted_tokens"] == 4
    assert metrics["slo_attainment"] == pytest.approx(3 / 5)


def test_summary_is_json_without_infinities():
    summary = summary_of(small_run(), offered_rate=math.inf, slo={"ttft_s": 1.0})
    assert summary["offered_rate"] is None
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_a_bound_met_exactly_is_met_and_failures_count_against_goodput():
    """FAULTS I11: <= SLO counts; refused and failed requests stay in the denominator."""
    metrics = summary_of(small_run(), slo=Slo(ttft_s=1.0, tpot_s=1.25))["metrics"]
    assert metrics["slo_attainment"] == pytest.approx(2 / 5)
    assert metrics["goodput_requests_per_s"] == pytest.approx(2 / 5.5)
    assert metrics["slo_attainment_by_bound"] == {
        "ttft_s": pytest.approx(2 / 5),
        "tpot_s": pytest.approx(3 / 5),
    }
    strict = summary_of(small_run(), slo={"ttft_s": 0.999999999})["metrics"]
    assert strict["slo_attainment"] == 0.0


def test_binary_fractions_do_not_break_a_bound_met_exactly():
    recorder = Recorder()
    recorder.submitted(0, scheduled_arrival_s=1.0, submitted_s=1.0, prompt_tokens=4)
    recorder.received(0, 1.1)
    recorder.ended(0, 1.1, "stop")
    assert 1.1 - 1.0 > 0.1
    assert summary_of(recorder, slo={"ttft_s": 0.1})["metrics"]["slo_attainment"] == 1.0


def test_an_answer_of_one_token_meets_bounds_on_gaps():
    tables = small_run().tables()
    judged = meets(Slo(tpot_s=1e-6, max_itl_s=1e-6), request_latencies(tables.requests))
    assert judged["good"].to_list() == [False, False, True, False, False]


def test_answers_delivered_whole_have_no_gaps_to_report():
    """FAULTS I8: explicit "not measured" instead of zeros that look like a perfect stream."""
    recorder = Recorder()
    recorder.submitted(0, scheduled_arrival_s=0.0, submitted_s=0.0, prompt_tokens=4)
    grant = {"admitted": [0], "grants": [(0, 4, 4, "prefill")]}
    recorder.iteration(IterationEvent(0.0, 1.0, emitted=[0], delivered=[], **grant))
    recorder.iteration(
        IterationEvent(1.0, 1.0, emitted=[0], delivered=[(0, 2)], finished=[(0, "length")])
    )
    summary = summary_of(recorder, slo={"tpot_s": 1.0})
    assert summary["metrics"]["ttft_s"]["p50"] == 2.0
    assert summary["metrics"]["itl_s"] == dict.fromkeys(
        ("mean", "p50", "p90", "p95", "p99", "max")
    ) | {"count": 0}
    assert summary["metrics"]["tpot_s"]["p50"] is None
    assert "delivered whole" in summary["not_measured"]["itl_s"]
    assert summary["metrics"]["slo_attainment"] is None
    assert summary["metrics"]["goodput_requests_per_s"] is None
    assert summary_of(recorder, slo={"ttft_s": 2.0})["metrics"]["slo_attainment"] == 1.0


def test_a_window_counts_arrivals_deliveries_and_iterations_inside_it():
    summary = summary_of(small_run(), window=(1.0, 3.0))
    metrics = summary["metrics"]
    assert summary["window"]["rule"] == "given"
    assert metrics["completed"] == 0
    assert metrics["failed"] == 0
    assert metrics["output_tokens_per_s"] == pytest.approx(4 / 2)
    assert metrics["requests_per_s"] == pytest.approx(1 / 2)
    assert metrics["iterations"] == 2
    assert metrics["busy_fraction"] == pytest.approx(1.5 / 2)
    with pytest.raises(ValueError, match=r"window=\(3.0, 1.0\) must end after it starts"):
        summary_of(small_run(), window=(3.0, 1.0))


def test_recomputation_lowers_the_useful_share():
    recorder = Recorder()
    recorder.submitted(0, scheduled_arrival_s=0.0, submitted_s=0.0, prompt_tokens=4)
    recorder.iteration(IterationEvent(0.0, 1.0, grants=[(0, 4, 4, "prefill")], emitted=[0]))
    recorder.iteration(IterationEvent(1.0, 1.0, preempted=[0]))
    recorder.iteration(
        IterationEvent(
            2.0, 1.0, grants=[(0, 5, 1, "prefill")], emitted=[0], finished=[(0, "length")]
        )
    )
    metrics = summary_of(recorder)["metrics"]
    assert metrics["recomputed_tokens"] == 4
    assert metrics["useful_token_fraction"] == pytest.approx(5 / 9)
    assert metrics["padding_fraction"] == 0.0


def test_an_external_endpoint_leaves_out_what_it_cannot_know():
    recorder = Recorder()
    recorder.submitted(0, scheduled_arrival_s=0.0, submitted_s=0.5, prompt_tokens=4)
    recorder.received(0, 1.0)
    recorder.received(0, 1.5)
    recorder.ended(0, 1.5, "stop")
    tables = recorder.tables()
    metrics = summarise(tables.requests, tables.iterations, backend="endpoint")["metrics"]
    assert metrics["ttft_s"]["p50"] == 1.0
    assert metrics["ttft_sent_s"]["p50"] == 0.5
    absent = ("iterations", "busy_fraction", "host_ms", "host_fraction", "padding_fraction",
              "useful_token_fraction", "mean_running")
    for name in (*absent, "kv_utilisation", "kv_waste", "max_waiting", "wasted_tokens"):
        assert metrics[name] is None
    assert metrics["queue_s"]["p50"] is None


def test_an_empty_run_has_a_summary():
    metrics = summary_of(Recorder())["metrics"]
    assert metrics["completed"] == 0
    assert metrics["output_tokens_per_s"] is None
    assert metrics["slo_attainment"] is None


def test_summaries_without_token_times_say_so():
    tables = small_run().tables().at_level("iterations")
    summary = summarise(tables.requests, tables.iterations, backend="test")
    assert "record=tokens" in summary["not_measured"]["itl_s"]
    assert summary["metrics"]["itl_s"]["p50"] is None
    assert summary["metrics"]["tpot_s"]["max"] == 1.25
    assert summary["metrics"]["output_tokens_per_s"] == pytest.approx(6 / 5.5)


def test_slo_fields_are_checked():
    assert as_slo(None) == Slo()
    assert str(Slo(ttft_s=1.0, tpot_s=0.1)) == "ttft <= 1 s, tpot <= 0.1 s"
    with pytest.raises(ValueError, match="slo has no field 'ttft'; the fields are ttft_s"):
        as_slo({"ttft": 1.0})
    with pytest.raises(ValueError, match="slo.ttft_s=0 must be more than 0 seconds"):
        as_slo({"ttft_s": 0})


def test_waiting_requests_wait_until_the_next_iteration_starts():
    recorder = Recorder()
    shared = {"duration_s": 1.0, "grants": [], "waiting": 2, "backlog": 1}
    recorder.iteration(IterationEvent(start_s=0.0, limited_by="blocks", **shared))
    recorder.iteration(IterationEvent(start_s=3.0, limited_by="seats", **shared))
    tables = recorder.tables()
    window = (0.0, 10.0)
    summary = summarise(tables.requests, tables.iterations, window=window, backend="test")
    assert summary["metrics"]["waiting_s_by_reason"] == {"blocks": 9.0, "seats": 3.0}
    assert summary["metrics"]["max_waiting"] == 3
    assert summary["metrics"]["backlog_iterations"] == 2


def test_leaped_iterations_count_as_many():
    recorder = Recorder()
    recorder.submitted(0, scheduled_arrival_s=0.0, submitted_s=0.0, prompt_tokens=1)
    recorder.iteration(IterationEvent(0.0, 5.0, grants=[(0, 5, 5, "decode")], repeats=5))
    tables = recorder.tables()
    assert tables.iterations["repeats"].to_list() == [5]
    summary = summarise(tables.requests, tables.iterations, window=(0.0, 5.0), backend="test")
    assert summary["metrics"]["iterations"] == 5
    assert isinstance(tables.iterations, pl.DataFrame)


def test_sums_of_iterations_do_not_depend_on_the_order_in_which_they_are_added():
    """A table library adds a column in as many parts as the machine has threads."""
    recorder = Recorder()
    for start_s, waiting in enumerate([3, 1, 2, 7, 5, 1] * 20):
        recorder.iteration(IterationEvent(
            start_s=start_s / 7, duration_s=0.1 + 1 / (3 + waiting), grants=[], waiting=waiting,
            limited_by="blocks",
        ))
    tables = recorder.tables()
    metrics = summarise(
        tables.requests, tables.iterations, window=(0.0, 99.0), backend="test"
    )["metrics"]
    start = tables.iterations["start_s"].to_list()
    until = [*start[1:], start[-1] + tables.iterations["duration_s"][-1]]
    waiting = tables.iterations["waiting"].to_list()
    products = [w * (u - s) for s, u, w in zip(start, until, waiting, strict=True)]
    assert metrics["waiting_s_by_reason"] == {"blocks": math.fsum(products)}
    assert math.fsum(products) != sum(products)
