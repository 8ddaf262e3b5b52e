"""Conversations: a turn is due a time to think after the answer before it, as in the engine."""

import heapq

import jax
import numpy as np
import pytest
from polars.testing import assert_frame_equal

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.sizing import limits_for
from cbjax.core.time import Time, from_seconds
from cbjax.engine.unit_clock import serve_with_unit_clock
from cbjax.metrics import Recorder
from cbjax.simulate import costs, simulate, talks
from cbjax.simulate.replay import replay
from cbjax.simulate.results import tables
from cbjax.workload import Arrivals, Lengths, Sessions, make_sessions, workload_from_trace

TALK = Sessions(
    turns=Lengths("uniform", low=1, high=5), message_lengths=Lengths("uniform", low=2, high=9),
    answer_lengths=Lengths("uniform", low=1, high=12), think_median_s=3.0, think_sigma=0.8,
)
SIZE = dict(block_size=4, num_blocks=24, max_length=72)
POLICIES = {
    "vllm": policies.vllm(max_num_batched_tokens=32, max_num_seqs=4),
    "static": policies.static(max_batch_size=4, delivery="at_end"),
}


def simulated(workload, policy, **options):
    limits = limits_for(policy, window=4, tables=False, iteration_tokens=80, **SIZE)
    return simulate(
        workload, policy, costs.linear(base_s=1.0), limits, system=system(limits, **SIZE),
        lanes=8, **options,
    )


def conversations(seed: int, count: int = 12):
    return workload_from_trace(
        make_sessions(TALK, count, Arrivals("poisson", rate=0.4), seed), seed=seed
    )


def test_a_turn_waits_for_the_answer_and_then_thinks():
    workload = conversations(0)
    rows = tables(simulated(workload, POLICIES["vllm"])).requests
    # Nobody is at the place that the workload gave him.
    assert rows["request_id"].to_list() != list(range(len(workload)))
    rows = rows.sort("request_id")
    due, ended = rows["scheduled_arrival_s"].to_list(), rows["finished_s"].to_list()
    later = [one for one in workload if one.after is not None]
    assert len(later) > 10 and rows["finish_reason"].n_unique() == 2  # some are too long
    for one in later:
        assert due[one.request_id] == pytest.approx(ended[one.after] + one.think_s, abs=2e-9)


@pytest.mark.parametrize("name", ["vllm", pytest.param("static", marks=pytest.mark.slow)])
def test_the_engine_and_a_leap_do_the_same(name):
    turns = []
    for seed in (1, 2, 3):
        workload, recorder = conversations(seed), Recorder()
        serve_with_unit_clock(
            POLICIES[name], workload, recorder, window=4, iteration_tokens=80, **SIZE
        )
        leaped = simulated(workload, POLICIES[name])
        walked = simulated(workload, POLICIES[name], leap=False)
        assert np.array_equal(leaped.kept, walked.kept)
        assert np.array_equal(leaped.iterations, walked.iterations)
        turns.append((leaped.turns, walked.turns))
        theirs = recorder.tables().requests.drop("token_times_s", "submitted_s")
        names = [one.class_name for one in workload]
        ours = tables(leaped, class_names=names).requests.drop("submitted_s")
        assert_frame_equal(ours, theirs, abs_tol=4e-9)
    assert sum(one for one, _ in turns) < sum(other for _, other in turns)


@pytest.mark.slow
def test_the_exact_record_tells_the_same():
    workload, recorder, told = conversations(1), Recorder(), Recorder()
    serve_with_unit_clock(
        POLICIES["vllm"], workload, recorder, window=4, iteration_tokens=80, **SIZE
    )
    done = simulated(workload, POLICIES["vllm"], pages=True)
    replay(done, told, class_names=[one.class_name for one in workload])
    for name in ("requests", "iterations", "schedule"):
        ours, theirs = (getattr(one.tables(), name) for one in (told, recorder))
        assert_frame_equal(
            *(table.drop("submitted_s", strict=False) for table in (ours, theirs)), abs_tol=4e-9
        )


def test_the_heap_gives_out_the_earliest_first():
    random = np.random.default_rng(0)
    count = 24
    after = np.where(np.arange(count) < 4, -1, np.arange(count) - 4)
    state = talks.talks_of(after, random.uniform(0, 3, count).round(1), 32)
    arrival = Time(np.full(32, 2**31 - 1, np.int32), np.zeros(32, np.int32))
    arrival.seconds[:4] = [0, 0, 1, 2]
    due = [(float(arrival.seconds[one]), one) for one in range(4)]
    follow, take = jax.jit(talks.follow), jax.jit(talks.arrived_by)
    arrived = np.int32(0)
    think = state.think.seconds + state.think.nanoseconds / 1e9
    for clock in np.arange(0, 60, 0.7):
        before = int(arrived)
        state, arrived = take(state, arrival, arrived, from_seconds(clock))
        came = []
        while due and due[0][0] <= clock + 1e-12:
            came.append(heapq.heappop(due)[1])
        assert state.order[before:int(arrived)].tolist() == came
        if not came:
            continue
        moments = Time(np.full(len(came), int(clock), np.int32), np.zeros(len(came), np.int32))
        state, arrival = follow(
            state, arrival, np.array(came), np.ones(len(came), bool), moments
        )
        for one in came:
            if one + 4 < count:
                heapq.heappush(due, (int(clock) + round(float(think[one + 4]), 9), one + 4))
    assert int(arrived) == count
