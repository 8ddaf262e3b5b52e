"""The queue's slope: against queues whose growth is known."""

import numpy as np
import polars as pl
import pytest

from cbjax.metrics.stability import queue_stability


def queue(arrived, began):
    return pl.DataFrame(
        {"scheduled_arrival_s": arrived, "admitted_s": began, "finished_s": began}
    )


def single_server(arrived, service_s):
    """Begin of service, first come first served (Lindley's recursion)."""
    began, free_at = [], 0.0
    for at in arrived:
        began.append(max(at, free_at))
        free_at = began[-1] + service_s
    return np.array(began)


def test_a_fixed_overload_grows_at_the_difference_of_the_rates():
    """4 requests a second arrive, 3 are served: one more waits every second, a quarter of all."""
    arrived = np.arange(400) / 4.0
    found = queue_stability(queue(arrived, single_server(arrived, 1 / 3)))
    assert found.growth_per_s == pytest.approx(1.0, rel=0.01)
    assert found.offered_per_s == pytest.approx(4.0, rel=0.02)
    assert found.growth == pytest.approx(0.25, rel=0.05)


def test_no_queue_does_not_grow():
    arrived = np.arange(400) / 4.0
    found = queue_stability(queue(arrived, arrived))
    assert found.growth_per_s == 0 and found.growth == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_busy_but_stable_queue_passes_and_an_overload_does_not(seed):
    arrived = np.cumsum(np.random.default_rng(seed).exponential(1.0, 5000))
    assert queue_stability(queue(arrived, single_server(arrived, 0.8))).growth < 0.01
    assert queue_stability(queue(arrived, single_server(arrived, 1.1))).growth > 0.05


def test_whoever_never_begins_waits_for_ever():
    arrived = np.arange(100.0)
    never = queue(arrived, arrived).with_columns(
        admitted_s=pl.lit(None, pl.Float64), finished_s=pl.lit(None, pl.Float64)
    )
    assert queue_stability(never).growth == pytest.approx(1.0, rel=0.02)


def test_too_few_or_simultaneous_requests_say_nothing():
    assert queue_stability(queue(np.arange(10.0), np.arange(10.0))) is None
    assert queue_stability(queue(np.zeros(50), np.arange(50.0))) is None
