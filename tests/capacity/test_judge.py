"""A run held against its limits: latencies, lost requests, the queue's growth, recomputation."""

import numpy as np
import pytest

from cbjax.capacity import Tolerances, judge
from cbjax.metrics import ITERATION_COLUMNS, REQUEST_COLUMNS, Slo, summarise
from cbjax.metrics.tables import frame


def run(ttft_s=0.1, waits_s=lambda n: 0.0 * n, recomputed=0, refused=0):
    """200 requests, one a second, an answer of 5 tokens 0.1 s apart."""
    rows = []
    for n in range(200):
        row = dict.fromkeys(REQUEST_COLUMNS)
        admitted = float(n + waits_s(n))
        first = admitted + ttft_s
        row |= {
            "request_id": n, "class": "", "priority": 0, "scheduled_arrival_s": float(n),
            "submitted_s": float(n), "visible_s": float(n), "admitted_s": admitted,
            "first_token_s": first, "finished_s": first + 0.4, "prompt_tokens": 20,
            "output_tokens": 5, "cached_prompt_tokens": 0, "preemptions": 0, "swaps": 0,
            "recomputed_tokens": recomputed, "max_itl_s": 0.1, "finish_reason": "length",
            "token_times_s": [first + 0.1 * k for k in range(5)],
        }
        if n < refused:
            row |= dict.fromkeys(("admitted_s", "first_token_s", "token_times_s", "max_itl_s"))
            row |= {"finish_reason": "refused", "error": "queue full", "output_tokens": 0}
        rows.append(tuple(row.values()))
    return frame(rows, REQUEST_COLUMNS)


def held(requests, slo, **tolerances):
    summary = summarise(requests, frame([], ITERATION_COLUMNS), slo=slo, backend="test")
    return judge(summary, slo, Tolerances(**tolerances))


SLO = Slo(ttft_s=0.2, itl_s=0.1, percentiles={"itl_s": 99})


def test_all_limits_are_named_with_their_values():
    verdict = held(run(), SLO)
    assert verdict.passes and verdict.gave_way == ()
    limits = {limit.name: (limit.value, limit.bound) for limit in verdict.limits}
    assert limits["ttft p95"] == (pytest.approx(0.1), 0.2)
    assert limits["itl p99"] == (pytest.approx(0.1), 0.1)
    assert set(limits) == {
        "ttft p95", "itl p99", "requests lost", "queue growth", "tokens recomputed",
    }


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("ttft p95", run(ttft_s=0.3)),
        ("requests lost", run(refused=5)),
        ("tokens recomputed", run(recomputed=5)),
    ],
)
def test_one_limit_gives_way_at_a_time(name, requests):
    assert held(requests, SLO).gave_way == (name,)


def test_a_queue_that_grows_fails_although_its_latencies_still_meet_the_slo():
    """Every request waits 50 ms longer than the one before: 4.8 % of the arrivals pile up."""
    patient = Slo(ttft_s=60.0)
    assert held(run(waits_s=lambda n: 0.05 * n), patient).gave_way == ("queue growth",)
    assert held(run(waits_s=lambda n: 0.05 * n), patient, growth=0.1).passes


def test_a_percentile_looks_at_so_many_requests_and_no_more():
    """8 % of the answers are late: the p95 sees them, the p90 does not."""
    late = run(waits_s=lambda n: np.where(n % 25 < 2, 5.0, 0.0))
    assert held(late, Slo(ttft_s=1.0)).gave_way == ("ttft p95",)
    assert held(late, Slo(ttft_s=1.0, percentiles={"ttft_s": 90})).passes


@pytest.mark.parametrize(
    ("slo", "words"),
    [
        (dict(ttft_s=1.0, percentiles={"ttft_s": 97}), "slo.percentiles.ttft_s=97: give one of"),
        (dict(percentiles={"itl_s": 99}), "nothing bounds itl_s; set slo.itl_s"),
        (dict(ttft_s=0.0), "more than 0 seconds"),
    ],
)
def test_impossible_objectives_are_refused(slo, words):
    with pytest.raises(ValueError, match=words):
        Slo(**slo)


def test_tolerances_are_shares():
    with pytest.raises(ValueError, match="thrash = 1.5"):
        Tolerances(thrash=1.5)


def test_itl_bounds_all_gaps_together_and_judges_no_single_answer():
    requests = run()
    assert dict(Slo(itl_s=0.05, ttft_s=1.0).bounds()) == {"ttft_s": 1.0}
    summary = summarise(
        requests, frame([], ITERATION_COLUMNS), slo=Slo(itl_s=0.05), backend="test"
    )
    assert summary["metrics"]["slo_attainment"] == 1.0
    assert summary["slo"] == {"itl_s": 0.05}
