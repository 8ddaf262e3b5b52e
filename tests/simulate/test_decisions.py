"""The simulator decides as the engine's loop does when both spend the same times."""

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from polars.testing import assert_frame_equal

from cbjax.simulate import costs
from cbjax.simulate.results import tables
from tests.policies.beside import CASES
from tests.simulate.against import engine_tables, run, simulated_tables

TIMES = np.random.default_rng(0).uniform(0.5, 1.5, 2048).astype(np.float32)
QUICK = ("vllm",)  # three programs each


def compare(name: str, examples: int) -> None:
    """Simulate, spend the same times in the engine's loop, and compare every row of every table."""
    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=CASES[name])
    def same(case):
        done = run(case, costs.replayed(TIMES), pages=True)
        durations = [] if isinstance(done, str) else _durations(done)
        theirs = engine_tables(case, durations or TIMES.tolist())
        if isinstance(done, str) or isinstance(theirs, str):
            assert done == theirs
            return
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

    same()


def _durations(done) -> list[float]:
    rows = done.iterations.astype(float)
    return (rows[:, 2] + rows[:, 3] / 1e9).tolist()


def _plain(table: pl.DataFrame) -> pl.DataFrame:
    # A simulated request is sent when it is due, one of the loop when the loop looks.
    return table.drop("submitted_s", strict=False)


@pytest.mark.parametrize("name", QUICK)
def test_the_simulator_decides_as_the_engine(name):
    compare(name, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_simulator_decides_as_the_engine_for_every_policy(name):
    compare(name, 12)
