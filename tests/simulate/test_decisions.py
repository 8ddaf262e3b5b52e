"""The simulator decides as the engine's loop does when both spend the same times."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from cbjax.metrics import Tables
from cbjax.parity.workload import Request, Workload
from cbjax.simulate import costs
from cbjax.simulate.results import tables
from tests.drawn import drawn
from tests.policies.beside import CASES, Case
from tests.simulate.against import engine_tables, run, simulated_tables

TIMES = np.random.default_rng(0).uniform(0.5, 1.5, 2048).astype(np.float32)
RANDOM = costs.replayed(TIMES)
QUICK = ("vllm",)  # three programs each


def compare(case: Case, cost=RANDOM) -> Tables | None:
    """Simulate, spend the same times in the engine's loop, and compare every row of every table."""
    done = run(case, cost, pages=True)
    durations = [] if isinstance(done, str) else tables(done).iterations["duration_s"].to_list()
    theirs = engine_tables(case, durations or TIMES.tolist())
    if isinstance(done, str) or isinstance(theirs, str):
        assert done == theirs
        return None
    ours = simulated_tables(case, done)
    for table in ("requests", "iterations", "schedule", "memory"):
        assert_frame_equal(_plain(getattr(ours, table)), _plain(getattr(theirs, table)),
                           abs_tol=2e-9)
    # The short way to the same rows.
    priorities = [one.priority for one in case.workload.requests]
    short = tables(done, priorities=priorities)
    assert_frame_equal(short.iterations, ours.iterations)
    assert_frame_equal(short.requests, ours.requests.drop("token_times_s"), abs_tol=2e-9)
    assert_frame_equal(short.memory, ours.memory)
    return ours


def compare_many(name: str, examples: int) -> None:
    @drawn(examples)
    @given(case=CASES[name])
    def same(case):
        compare(case)

    same()


def _plain(table: pl.DataFrame) -> pl.DataFrame:
    # A simulated request is sent when it is due, one of the loop when the loop looks.
    return table.drop("submitted_s", strict=False)


@pytest.mark.parametrize("name", QUICK)
def test_the_simulator_decides_as_the_engine(name):
    compare_many(name, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_simulator_decides_as_the_engine_for_every_policy(name):
    compare_many(name, 12)


def test_a_decision_that_only_preempts_is_counted():
    """The last of three by priority takes its own blocks away: in that turn nothing is computed."""
    lengths = [(1, 6, 0), (1, 6, 0), (2, 15, 1), (1, 12, 0), (1, 6, 0), (1, 6, 0), (2, 9, 0),
               (1, 6, 0)]
    case = Case(
        "vllm",
        dict(max_num_batched_tokens=24, max_num_seqs=5, enable_chunked_prefill=False,
             policy="priority", scheduler_reserve_full_isl=False),
        block_size=1, num_blocks=40, max_length=24,
        workload=Workload(tuple(
            Request(id, 3 * (id > 2), prompt, max_tokens, priority=priority)
            for id, (prompt, max_tokens, priority) in enumerate(lengths)
        )),
    )
    both = compare(case, costs.linear(base_s=1.0))
    assert both is not None
    assert both.requests["preemptions"].sum() == 1
    assert both.iterations["preempted"].sum() == 1
    # The decision is no iteration, but the time line shows it.
    preempted = both.schedule.filter(pl.col("kind") == "preempted")
    assert preempted["duration_s"].to_list() == [0.0]
