"""Arrival schedules: rates, burstiness, common random numbers, closed loops."""

import numpy as np
import pytest

from cbjax.workload import Arrivals, arrival_times

OPEN = [
    Arrivals("poisson", rate=4.0),
    Arrivals("gamma", rate=4.0, burstiness=0.25),
    Arrivals("gamma", rate=4.0, burstiness=5.0),
    Arrivals("constant", rate=4.0),
]


def gaps(arrivals: Arrivals, count: int = 20_000, seed: int = 1) -> np.ndarray:
    return np.diff([0.0, *arrival_times(arrivals, count, seed)])


@pytest.mark.parametrize("arrivals", OPEN)
def test_mean_rate_is_the_rate_asked_for(arrivals):
    assert np.mean(gaps(arrivals)) == pytest.approx(1 / 4, rel=0.05)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 5.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness):
    """The variance of a gamma distribution of mean m and shape b is m^2 / b."""
    drawn = gaps(Arrivals("gamma", rate=2.0, burstiness=burstiness))
    assert np.var(drawn) == pytest.approx(0.25 / burstiness, rel=0.1)


def test_gamma_of_burstiness_one_is_poisson():
    gamma = Arrivals("gamma", rate=3.0, burstiness=1.0)
    assert arrival_times(gamma, 50, 7) == arrival_times(Arrivals("poisson", rate=3.0), 50, 7)


@pytest.mark.parametrize("arrivals", OPEN)
def test_one_seed_gives_one_pattern_stretched_by_the_rate(arrivals):
    slow = np.array(arrival_times(arrivals, 40, 5))
    fields = {"rate": 10.0, "burstiness": arrivals.burstiness}
    fast = np.array(arrival_times(Arrivals(arrivals.kind, **fields), 40, 5))
    np.testing.assert_allclose(slow * 4.0, fast * 10.0, rtol=1e-12)


@pytest.mark.parametrize("arrivals", OPEN)
def test_a_longer_workload_begins_with_the_shorter_one(arrivals):
    assert arrival_times(arrivals, 30, 5)[:10] == arrival_times(arrivals, 10, 5)


def test_schedules_rise_and_differ_by_seed():
    for arrivals in OPEN[:3]:
        times = arrival_times(arrivals, 100, 2)
        assert list(times) == sorted(times) and times[0] > 0
        assert times != arrival_times(arrivals, 100, 3)


def test_constant_arrivals_are_evenly_spaced():
    assert arrival_times(Arrivals("constant", rate=4.0), 3, 0) == (0.25, 0.5, 0.75)


def test_all_at_once_and_closed_loop():
    assert arrival_times(Arrivals(), 3, 0) == (0.0, 0.0, 0.0)
    loop = Arrivals("closed_loop", concurrency=2)
    assert arrival_times(loop, 4, 0) == (0.0, 0.0, None, None)
    assert arrival_times(loop, 1, 0) == (0.0,)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "posson", "rate": 1.0}, "kind"),
        ({"kind": "poisson"}, "rate"),
        ({"kind": "poisson", "rate": 0.0}, "rate"),
        ({"kind": "poisson", "rate": float("inf")}, "rate"),
        ({"kind": "poisson", "rate": 1.0, "burstiness": 2.0}, "burstiness"),
        ({"kind": "gamma", "rate": 1.0}, "burstiness"),
        ({"kind": "gamma", "rate": 1.0, "burstiness": -1.0}, "burstiness"),
        ({"kind": "all_at_once", "rate": 1.0}, "rate"),
        ({"kind": "closed_loop"}, "concurrency"),
        ({"kind": "closed_loop", "concurrency": 1.5}, "concurrency"),
        ({"kind": "closed_loop", "concurrency": 2, "rate": 1.0}, "rate"),
    ],
)
def test_impossible_values_name_field_value_and_remedy(fields, named):
    with pytest.raises(ValueError, match=rf"^arrivals\.{named} = .*: .*(use|needs)"):
        Arrivals(**fields)
