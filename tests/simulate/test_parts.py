"""The simulator's parts alone: cost models, the histogram of gaps, streams."""

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from cbjax.core.limits import Limits
from cbjax.core.time import Time
from cbjax.simulate import costs, histogram, stream_of_columns
from cbjax.simulate.work import Work


def work(
    tokens=(1,), *, prefill=0, sequences=1, context=0, attended=0.0, iteration=0, moved=0
) -> Work:
    tokens = jnp.asarray(tokens, jnp.int32)

    def same(value, kind=jnp.int32):
        return jnp.broadcast_to(jnp.asarray(value, kind), tokens.shape)

    return Work(
        same(iteration), tokens, same(prefill), same(sequences), same(context),
        same(attended, jnp.float32), same(moved),
    )


def seconds(cost, *given, **more) -> list[float]:
    return np.asarray(cost.seconds(work(*given, **more)), np.float64).tolist()


def test_every_cost_model_is_found_by_its_file():
    assert {"linear", "roofline", "table", "fitted", "replayed"} <= set(costs.names)
    with pytest.raises(ValueError, match="cost = 'lineer'.*linear"):
        costs.get("lineer")


def test_linear():
    cost = costs.linear(base_s=0.004, per_token_s=2e-5, per_context_s=1e-6)
    assert seconds(cost, (1, 100), context=1000) == pytest.approx([0.00502, 0.007])
    swapping = costs.linear(base_s=0.004, per_moved_block_s=1e-3)
    assert seconds(swapping, (1,), moved=3) == pytest.approx([0.007])


def test_roofline_takes_the_longer_of_memory_and_arithmetic():
    cost = costs.roofline(
        2e9, 1e5, 2e9, bandwidth=1e12, flop_rate=1e14, flops_per_pair=1e6, overhead_s=1e-3
    )
    # One token: 2 ms for the weights, 0.1 us per position; 20 us of arithmetic.
    assert seconds(cost, (1,), context=999) == pytest.approx([0.001 + 0.002 + 1000 * 1e-7])
    # 1,000 tokens: 20 ms of arithmetic and 10 ns per attended pair.
    assert seconds(cost, (1000,), context=1000, attended=500_500) == pytest.approx(
        [0.001 + 0.02 + 500_500 * 1e-8]
    )


def test_table_interpolates_and_continues():
    cost = costs.table([1, 101], [0.001, 0.002])
    assert seconds(cost, (1, 51, 101, 201)) == pytest.approx([0.001, 0.0015, 0.002, 0.003])
    both = costs.table([1, 101], [[0.001, 0.002], [0.002, 0.004]], context=[0, 1000])
    assert seconds(both, (51,), context=500) == pytest.approx([0.00225])


def test_fitted_finds_the_numbers_that_made_the_times():
    random = np.random.default_rng(1)
    count = 200
    scheduled, context = random.integers(1, 512, count), random.integers(10, 20_000, count)
    running = random.integers(1, 64, count)
    iterations = pl.DataFrame(dict(
        iteration=np.arange(count), duration_s=0.003 + 2e-5 * scheduled + 1e-7 * context,
        scheduled_tokens=scheduled, padded_tokens=np.zeros(count, int),
        prefill_tokens=scheduled // 2, running=running,
    ))
    memory = pl.DataFrame(dict(iteration=np.arange(count), live_tokens=context))
    terms = costs.fitted(iterations, memory=memory).terms
    assert terms["base"] == pytest.approx(0.003, rel=1e-4)
    assert terms["tokens"] == pytest.approx(2e-5, rel=1e-4)
    assert terms["context"] == pytest.approx(1e-7, rel=1e-4)
    assert abs(terms["sequences"]) < 1e-8 and min(terms.values()) >= 0


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: costs.linear(-1.0), "base_s = -1.0"),
        (lambda: costs.linear(0.0), "all 0"),
        (lambda: costs.roofline(1, 1, 1, bandwidth=0, flop_rate=1), "bandwidth = 0"),
        (lambda: costs.table([2, 1], [1.0, 1.0]), "tokens"),
        (lambda: costs.replayed([]), "durations_s"),
        (lambda: costs.fitted(pl.DataFrame(dict(duration_s=[1.0]))), "1 rows"),
    ],
)
def test_wrong_numbers_are_named(build, field):
    with pytest.raises(ValueError, match=field):
        build()


def test_percentiles_of_the_histogram_are_within_their_error():
    random = np.random.default_rng(0)
    gaps = np.concatenate([
        random.lognormal(-4, 1.5, 20_000), random.uniform(0.9, 30, 500), [1e-9, 0.0, 2000.0]
    ])
    gaps = np.round(gaps, 9)
    whole = np.floor(gaps).astype(np.int32)
    moments = Time(jnp.asarray(whole), jnp.asarray(np.round((gaps - whole) * 1e9), jnp.int32))
    counts = np.bincount(np.asarray(histogram.bin_of(moments)), minlength=histogram.BINS)
    points = np.array([1, 25, 50, 75, 90, 95, 99, 99.9])
    exact = np.percentile(gaps, points, method="linear")
    found = histogram.percentiles_s(counts, points)
    assert histogram.MOST_RELATIVE_ERROR < 0.01
    np.testing.assert_allclose(found, exact, rtol=histogram.MOST_RELATIVE_ERROR)


def test_a_stream_rounds_arrivals_to_nanoseconds_and_refuses_too_many():
    limits = Limits(2, 2, 8, 8, 0, 4)
    made = stream_of_columns(np.array([0.1234567891, 3.0]), np.ones(2), np.ones(2), limits)
    assert made.arrival.nanoseconds[:2].tolist() == [123456789, 0]
    assert made.arrival.seconds[:3].tolist() == [0, 3, np.iinfo(np.int32).max]
    with pytest.raises(ValueError, match="size = 1"):
        stream_of_columns(np.zeros(2), np.ones(2), np.ones(2), limits, size=1)
