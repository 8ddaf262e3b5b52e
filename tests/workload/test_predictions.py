"""Predicted lengths: drawn once for a workload, and seen by engine and simulator alike."""

from dataclasses import replace

import numpy as np
import pytest

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.sizing import limits_for
from cbjax.engine.unit_clock import serve_with_unit_clock
from cbjax.metrics import Recorder
from cbjax.simulate import costs, simulate
from cbjax.simulate.results import tables
from cbjax.workload import Arrivals, Workload, WorkloadRequest, with_predictions

POLICY = policies.composed(
    max_num_batched_tokens=32, max_num_seqs=1, order="shortest_answer_first"
)
SIZE = dict(block_size=4, num_blocks=16, max_length=32)


def workload(outputs, **more):
    return Workload(tuple(
        WorkloadRequest(
            request_id=place, class_name="", priority=0, scheduled_arrival_s=0.0, prompt=None,
            prompt_tokens=4, max_tokens=tokens, ignore_eos=True, seed=0, **more,
        ) for place, tokens in enumerate(outputs)
    ), Arrivals(), 0)


def test_an_error_belongs_to_the_request():
    few, many = (with_predictions(workload([40] * count), 1.0, seed=3) for count in (4, 400))
    assert few.requests == many.requests[:4]
    logarithms = np.log([one.predicted_tokens / 40 for one in many])
    assert abs(logarithms.mean()) < 0.15 and 0.9 < logarithms.std() < 1.1
    twice = np.log([one.predicted_tokens / 40 for one in with_predictions(many, 2.0, seed=3)])
    assert np.corrcoef(logarithms, twice)[0, 1] > 0.95
    assert [one.predicted_tokens for one in with_predictions(few, 0.0)] == [40] * 4
    assert with_predictions(workload([None, 1]), 1.0).requests[0].predicted_tokens is None
    with pytest.raises(ValueError, match="prediction_error = -1"):
        with_predictions(few, -1)


def order_in(requests) -> list[int]:
    table = requests.sort("admitted_s")
    return table["request_id"].to_list()


@pytest.mark.parametrize(
    ("predicted", "order"),
    [([None] * 4, [3, 2, 1, 0]), ([2, 9, 4, 7], [0, 2, 3, 1]), ([5, None, 6, 1], [3, 0, 2, 1])],
)
def test_engine_and_simulator_follow_the_prediction(predicted, order):
    """Where nobody predicts, what is allowed stands in."""
    sent = workload([9, 8, 7, 6])
    sent = replace(sent, requests=tuple(
        replace(one, predicted_tokens=tokens)
        for one, tokens in zip(sent.requests, predicted, strict=True)
    ))
    recorder = Recorder()
    serve_with_unit_clock(POLICY, sent, recorder, window=8, **SIZE)
    limits = limits_for(POLICY, window=8, tables=False, **SIZE)
    done = simulate(
        sent, POLICY, costs.linear(base_s=1.0), limits, system=system(limits, **SIZE)
    )
    assert order_in(recorder.tables().requests) == order
    assert order_in(tables(done).requests) == order
