"""Other loads from one trace: windows, rates, lengths, ticks, merging."""

import numpy as np
import pytest

from cbjax.workload import (
    Arrivals,
    cut,
    cut_lengths,
    first,
    merge,
    scale_lengths,
    scale_rate,
    spread_ticks,
    trace_of_columns,
    with_arrivals,
)
from cbjax.workload.segments import of_blocks


def bursty(count: int = 400, seed: int = 0, blocks: bool = False):
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, 900, count)
    ids = [rng.integers(0, 4, -(-length // 64)).tolist() for length in prompts]
    return trace_of_columns(
        "bursty", np.cumsum(rng.gamma(0.2, 5.0, count)), prompts, rng.integers(1, 90, count),
        segments=of_blocks(ids, prompts, 64) if blocks else None,
    )


def test_columns_come_into_order_together():
    trace = trace_of_columns(
        "t", np.array([3.0, 1.0, 3.0]), np.array([1, 2, 3]), np.array([4, 5, 6]),
        class_of=["b", "a", "b"], priority=np.array([7, 8, 9]),
        segments=of_blocks([[10], [20], [30]], np.array([1, 2, 3]), 8),
    )
    assert trace.arrival_s.tolist() == [1, 3, 3] and trace.prompt_tokens.tolist() == [2, 1, 3]
    assert trace.output_tokens.tolist() == [5, 4, 6] and trace.priority.tolist() == [8, 7, 9]
    assert [trace.class_names[index] for index in trace.classes] == ["a", "b", "b"]
    assert trace.segments.ids.tolist() == [20, 10, 30]
    assert trace.segments.lengths.tolist() == [2, 1, 3]
    assert trace.duration_s == 2 and trace.rate == 1.5


@pytest.mark.parametrize("rate", [0.01, 1.0, 250.0])
def test_another_rate_keeps_the_pattern(rate):
    trace = bursty()
    scaled = scale_rate(trace, rate)
    assert scaled.rate == pytest.approx(rate)
    gaps, before = np.diff(scaled.arrival_s), np.diff(trace.arrival_s)
    np.testing.assert_allclose(gaps * rate, before * trace.rate, atol=1e-9)
    np.testing.assert_array_equal(scaled.prompt_tokens, trace.prompt_tokens)


def test_a_window_begins_at_0_and_holds_what_arrives_in_it():
    trace = bursty()
    window = cut(trace, 100.0, 50.0)
    inside = (trace.arrival_s >= 100) & (trace.arrival_s < 150)
    np.testing.assert_allclose(window.arrival_s, trace.arrival_s[inside] - 100)
    np.testing.assert_array_equal(window.output_tokens, trace.output_tokens[inside])
    assert window.duration_s == 50 and window.rate == inside.sum() / 50
    rest = cut(trace, 100.0)
    assert len(rest) == (trace.arrival_s >= 100).sum()
    assert rest.duration_s == trace.duration_s - 100


def test_the_first_requests_keep_the_rate():
    trace = bursty(count=4000)
    assert len(first(trace, 1000)) == 1000
    assert first(trace, 1000).rate == pytest.approx(trace.rate, rel=0.1)
    assert first(trace, 9999) is trace


def test_ticks_are_spread_within_themselves_and_in_order():
    rng = np.random.default_rng(3)
    fine = np.sort(rng.uniform(0, 900, 3000))
    trace = trace_of_columns("t", np.floor(fine / 3) * 3, np.arange(1, 3001), np.ones(3000))
    spread = spread_ticks(trace, seed=1)
    np.testing.assert_array_equal(np.floor(spread.arrival_s / 3) * 3, trace.arrival_s)
    np.testing.assert_array_equal(spread.prompt_tokens, trace.prompt_tokens)
    assert len(np.unique(spread.arrival_s)) == 3000
    offsets = spread.arrival_s - trace.arrival_s
    assert offsets.mean() == pytest.approx(1.5, abs=0.1), "evenly over the tick"
    np.testing.assert_array_equal(spread.arrival_s, spread_ticks(trace, seed=1).arrival_s)
    assert not np.array_equal(spread.arrival_s, spread_ticks(trace, seed=2).arrival_s)


def test_a_fine_clock_and_a_single_stamp_hardly_change():
    trace = trace_of_columns("t", np.array([0.0, 0.5, 0.501, 9.0]), np.ones(4), np.ones(4))
    np.testing.assert_allclose(spread_ticks(trace, 1).arrival_s, trace.arrival_s, atol=0.0011)
    once = trace_of_columns("t", np.zeros(3), np.ones(3), np.ones(3))
    assert spread_ticks(once, 1).arrival_s.tolist() == [0, 0, 0]
    assert spread_ticks(once, 1, tick_s=2.0).arrival_s.max() > 0


@pytest.mark.parametrize("factor", [1 / 16, 1 / 3, 0.9, 2.5])
def test_scaled_lengths_are_rounded_up_and_segments_follow(factor):
    trace = bursty(blocks=True)
    scaled = scale_lengths(trace, prompt=factor, output=factor)
    np.testing.assert_array_equal(
        scaled.prompt_tokens, np.maximum(np.ceil(trace.prompt_tokens * factor - 1e-6), 1)
    )
    assert scaled.output_tokens.min() >= 1
    for row in range(len(trace)):
        assert scaled.segments.prompt(row).tokens == scaled.prompt_tokens[row]


def test_cut_lengths_drop_what_is_behind():
    trace = bursty(blocks=True)
    short = cut_lengths(trace, prompt=100, output=10)
    np.testing.assert_array_equal(short.prompt_tokens, np.minimum(trace.prompt_tokens, 100))
    np.testing.assert_array_equal(short.output_tokens, np.minimum(trace.output_tokens, 10))
    for row in range(len(trace)):
        prompt = short.segments.prompt(row)
        assert prompt.tokens == short.prompt_tokens[row]
        assert prompt.ids == trace.segments.prompt(row).ids[: len(prompt.ids)]
    assert cut_lengths(trace).prompt_tokens.tolist() == trace.prompt_tokens.tolist()


def test_other_arrivals_for_the_same_requests():
    trace = bursty()
    assert with_arrivals(trace, Arrivals("recorded"), 1) is trace
    faster = with_arrivals(trace, Arrivals("recorded", rate=9.0), 1)
    np.testing.assert_array_equal(faster.arrival_s, scale_rate(trace, 9.0).arrival_s)
    drawn = with_arrivals(trace, Arrivals("poisson", rate=9.0), 1)
    assert drawn.rate == pytest.approx(9.0, rel=0.2)
    np.testing.assert_array_equal(drawn.prompt_tokens, trace.prompt_tokens)


def test_merged_traces_interleave_and_share_nothing():
    one, other = bursty(50, seed=1, blocks=True), bursty(70, seed=2, blocks=True)
    both = merge([one, other])
    assert len(both) == 120 and np.all(np.diff(both.arrival_s) >= 0)
    assert both.prompt_tokens.sum() == one.prompt_tokens.sum() + other.prompt_tokens.sum()
    np.testing.assert_array_equal(both.segments.ends()[both.segments.offsets[1:] - 1],
                                  both.prompt_tokens)
    kinds = [len(np.unique(trace.segments.ids)) for trace in (one, other, both)]
    assert kinds[2] == kinds[0] + kinds[1]
    assert merge([one]) is one


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: cut(bursty(), -1.0), "start_s = -1.0"),
        (lambda: cut(bursty(), 0.0, 0.0), "duration_s = 0.0"),
        (lambda: cut(bursty(), 1e9), "start_s = 1000000000.0: no request arrives"),
        (lambda: first(bursty(), 0), "num_requests = 0"),
        (lambda: spread_ticks(bursty(), 0, tick_s=0), "tick_s = 0"),
        (lambda: scale_rate(bursty(), 0), "rate = 0"),
        (lambda: scale_rate(trace_of_columns("t", np.zeros(2), np.ones(2), np.ones(2)), 1),
         "rate = 1: all requests of this trace arrive at once"),
        (lambda: scale_lengths(bursty(), prompt=0), "prompt_scale = 0"),
        (lambda: scale_lengths(bursty(), output=np.inf), "output_scale = inf"),
        (lambda: cut_lengths(bursty(), output=0), "max_output_tokens = 0"),
        (lambda: with_arrivals(bursty(), Arrivals("closed_loop", concurrency=2), 0),
         "arrivals.kind = 'closed_loop'"),
        (lambda: merge([]), r"traces = \[\]"),
        (lambda: merge([bursty(), bursty(blocks=True)]), "segments = None"),
        (lambda: trace_of_columns("t", np.zeros(2), np.ones(3), np.ones(2)), "trace = "),
        (lambda: trace_of_columns("t", np.array([np.nan]), np.ones(1), np.ones(1)), "arrival_s = "),
        (lambda: trace_of_columns("t", np.zeros(1), np.zeros(1), np.ones(1)), "prompt_tokens = "),
    ],
)
def test_impossible_values_name_field_value_and_remedy(make, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        make()
