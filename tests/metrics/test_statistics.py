"""Intervals: against known values, and by how often they hold the truth."""

import numpy as np
import pytest

from cbjax.metrics import batch_means, bootstrap_interval, mean_interval, student_t, warmed_up


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (9, 2.262), (10, 2.228), (29, 2.045), (200, 1.972)]
)
def test_students_t_is_that_of_the_tables(freedom, expected):
    assert student_t(freedom) == pytest.approx(expected, abs=0.003)


def test_an_interval_of_a_mean_by_hand():
    """Mean 2, deviation 1, three values: 4.303 / sqrt(3) to either side."""
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - 2.484, 2 + 2.484), abs=1e-3)
    assert not found.differs_from_zero
    assert mean_interval([1.0]) is None


@pytest.mark.parametrize("count", [6, 10, 30])
@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_the_bootstrap_holds_the_truth_as_often_as_it_says(count, draw):
    """95 % promised; plain percentiles hold it in 86 % of cases for six normal values."""
    rng = np.random.default_rng(1)
    truth = 0.0 if draw == "normal" else 1.0
    tries = [bootstrap_interval(getattr(rng, draw)(size=count)) for _ in range(400)]
    held = np.mean([one.low <= truth <= one.high for one in tries])
    assert held > (0.915 if draw == "normal" else 0.87)
    assert held < 1.0 or count == 6


def test_few_values_are_not_resampled_and_equal_ones_are_certain():
    assert bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0]).method == "Student's t"
    assert bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).method == "bootstrap"
    same = bootstrap_interval([2.0] * 7)
    assert (same.low, same.high) == (2.0, 2.0) and same.differs_from_zero
    assert not bootstrap_interval([0.0] * 7).differs_from_zero


def test_the_same_values_give_the_same_interval():
    values = np.random.default_rng(0).normal(size=12)
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_a_warm_up_is_a_fifth_of_the_arrivals():
    assert warmed_up(np.arange(10.0)).tolist() == [False] * 2 + [True] * 8
    assert warmed_up(np.arange(10.0)[::-1]).tolist() == [True] * 8 + [False] * 2
    assert warmed_up(np.zeros(10)).all()
    assert not len(warmed_up(np.empty(0)))


def test_batch_means_need_twenty_values_and_keep_their_mean():
    assert batch_means(np.arange(19.0)) is None
    means = batch_means(np.arange(40.0))
    assert means.tolist() == [1.5 + 4 * n for n in range(10)]


def test_batch_means_are_not_fooled_by_values_that_resemble_their_neighbours():
    """A random walk's pieces vary far more than as many independent values would."""
    rng, held = np.random.default_rng(2), {"requests": 0, "batches": 0}
    for _ in range(100):
        noise = rng.normal(size=520)
        values = np.array([noise[i : i + 20].mean() for i in range(500)])
        held["requests"] += not mean_interval(values).differs_from_zero
        held["batches"] += not bootstrap_interval(batch_means(values)).differs_from_zero
    assert held["requests"] < 60 and held["batches"] > 85
