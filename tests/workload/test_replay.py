"""Traces as workloads."""

import time

import numpy as np
import pytest

from cbjax.workload import (
    Arrivals,
    scale_rate,
    segment_token_ids,
    tokenise_workload,
    trace_of_columns,
    workload_from_trace,
)
from cbjax.workload.segments import of_blocks

TRACE = trace_of_columns(
    "t", np.array([0.0, 1.0, 4.0]), np.array([20, 33, 16]), np.array([5, 6, 7]),
    class_of=["a", "b", "a"], priority=np.array([0, 3, 0]),
    segments=of_blocks([[1, 2], [1, 2, 3], [4]], np.array([20, 33, 16]), 16),
)


def test_every_request_keeps_its_row():
    workload = workload_from_trace(TRACE, seed=4)
    rows = [(r.scheduled_arrival_s, r.class_name, r.priority, r.prompt_tokens, r.max_tokens)
            for r in workload]
    assert rows == [(0, "a", 0, 20, 5), (1, "b", 3, 33, 6), (4, "a", 0, 16, 7)]
    assert all(request.ignore_eos and request.prompt is None for request in workload)
    assert workload.offered_rate == 0.75
    assert len({request.seed for request in workload}) == 3
    assert workload == workload_from_trace(TRACE, seed=4)


@pytest.mark.parametrize("rate", [0.5, 30.0])
def test_a_rate_stretches_recorded_times(rate):
    workload = workload_from_trace(TRACE, arrivals=Arrivals("recorded", rate=rate))
    times = [request.scheduled_arrival_s for request in workload]
    assert times == scale_rate(TRACE, rate).arrival_s.tolist()
    assert workload.offered_rate == pytest.approx(rate)


def test_other_arrivals_take_the_place_of_recorded_ones():
    loop = workload_from_trace(TRACE, arrivals=Arrivals("closed_loop", concurrency=1))
    assert [request.scheduled_arrival_s for request in loop] == [0.0, None, None]
    drawn = workload_from_trace(TRACE, arrivals=Arrivals("poisson", rate=2.0), seed=1)
    assert drawn.offered_rate == 2.0 and drawn.requests[0].scheduled_arrival_s > 0


def test_shared_segments_become_shared_tokens():
    workload = workload_from_trace(TRACE, seed=4)
    ids = [r.prompt for r in tokenise_workload(workload, None, vocab_size=99, excluded_ids=(7,))]
    assert [len(one) for one in ids] == [20, 33, 16]
    assert ids[0] == ids[1][:20] and ids[2] != ids[0][:16]
    assert not any(7 in one for one in ids)
    assert ids[0] == segment_token_ids(4, TRACE.segments.prompt(0), 99, (7,))


def test_columns_of_many_requests_take_no_time():
    rng = np.random.default_rng(0)
    count = 200_000
    begun = time.process_time()
    trace = trace_of_columns(
        "t", np.cumsum(rng.exponential(1.0, count)), rng.integers(1, 999, count),
        rng.integers(1, 99, count),
    )
    scale_rate(trace, 50.0)
    assert time.process_time() - begun < 1.0
