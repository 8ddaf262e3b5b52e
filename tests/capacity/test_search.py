"""Doubling and bisection: brackets that always hold, whatever the verdicts."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbjax.capacity import Limit, Search, Verdict, greatest_load

LOOK = Search(start=1.0, least=0.01, most=1000.0, precision=0.02)


def verdict(passes):
    return Verdict((Limit("ttft p95", 0.5 if passes else 2.0, 1.0),))


def up_to(capacity):
    return lambda load: verdict(load <= capacity)


@settings(max_examples=200, deadline=None)
@given(st.floats(0.011, 999.0))
def test_the_bracket_holds_the_capacity_and_is_narrow(capacity):
    found = greatest_load(up_to(capacity), LOOK)
    assert found.low <= capacity < found.high <= found.low * 1.02 + 1e-9
    assert found.gave_way == ("ttft p95",)


def test_loads_double_first_and_every_one_is_tried_once():
    tried = []

    def probe(load):
        tried.append(load)
        return verdict(load <= 5.0)

    greatest_load(probe, LOOK)
    assert tried[:4] == [1.0, 2.0, 4.0, 8.0]
    assert len(set(tried)) == len(tried)
    assert all(4.0 < load < 8.0 for load in tried[4:])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_wobbling_verdicts_keep_the_bracket_consistent(seed):
    """A verdict of its own for every load: the ends are still a pass and a failure."""
    def probe(load):
        return verdict(hash((seed, load)) % 2 == 0)

    found = greatest_load(probe, LOOK)
    assert found.low == 0 or found.verdicts[found.low].passes
    assert found.high == math.inf or not found.verdicts[found.high].passes
    assert found.low < found.high


def test_no_load_at_all_and_no_end():
    nothing = greatest_load(up_to(0.001), LOOK)
    assert (nothing.low, nothing.high) == (0.0, 0.01)
    everything = greatest_load(up_to(math.inf), LOOK)
    assert (everything.low, everything.high, everything.gave_way) == (1000.0, math.inf, ())


def test_a_value_that_was_not_measured_does_not_pass():
    assert not Limit("itl p99", None, 0.1).held
    assert Limit("itl p99", 0.1, 0.1).held


@pytest.mark.parametrize(
    "wrong",
    [
        dict(start=1, least=2, most=3), dict(start=1, least=0, most=3),
        dict(start=4, least=1, most=3), dict(start=1, least=1, most=2, precision=0),
    ],
)
def test_impossible_searches_are_refused(wrong):
    with pytest.raises(ValueError, match="search"):
        Search(**wrong)
