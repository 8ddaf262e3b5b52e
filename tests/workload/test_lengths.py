"""Length distributions: bounds, clipping, prefixes."""

import numpy as np
import pytest

from cbjax.workload import Lengths, draw_lengths


def drawn(lengths: Lengths, count: int = 5000, seed: int = 3) -> list[int]:
    return draw_lengths(lengths, count, np.random.default_rng(seed))


def test_fixed_and_uniform():
    assert drawn(Lengths("fixed", value=7), 3) == [7, 7, 7]
    assert set(drawn(Lengths("uniform", low=2, high=5))) == {2, 3, 4, 5}


def test_log_normal_has_its_median_and_is_clipped_not_drawn_again():
    lengths = drawn(Lengths("log_normal", median=200, sigma=0.9, low=100, high=400))
    assert np.median(lengths) == pytest.approx(200, rel=0.05)
    assert min(lengths) == 100 and max(lengths) == 400
    outside = sum(length in (100, 400) for length in lengths) / len(lengths)
    assert outside == pytest.approx(0.44, abs=0.03)  # beyond ln 2 / 0.9 deviations, both sides


def test_no_spread_gives_the_median():
    assert set(drawn(Lengths("log_normal", median=9, sigma=0, low=1, high=20))) == {9}


@pytest.mark.parametrize(
    "lengths",
    [
        Lengths("uniform", low=1, high=900),
        Lengths("log_normal", median=50, sigma=1.0, low=1, high=900),
    ],
)
def test_more_lengths_begin_with_the_same_ones(lengths):
    assert drawn(lengths, 40)[:15] == drawn(lengths, 15)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "normal"}, "kind"),
        ({"kind": "fixed"}, "value"),
        ({"kind": "fixed", "value": 0}, "value"),
        ({"kind": "fixed", "value": 2.5}, "value"),
        ({"kind": "fixed", "value": 3, "low": 1}, "low"),
        ({"kind": "uniform", "low": 0, "high": 3}, "low"),
        ({"kind": "uniform", "low": 4, "high": 3}, "low"),
        ({"kind": "log_normal", "median": 5, "sigma": -1, "low": 1, "high": 9}, "sigma"),
        ({"kind": "log_normal", "median": 5, "sigma": 1, "low": 1}, "high"),
    ],
)
def test_impossible_values_name_field_value_and_remedy(fields, named):
    with pytest.raises(ValueError, match=rf"^lengths\.{named} = .*: .*(use|needs|leave)"):
        Lengths(**fields)
