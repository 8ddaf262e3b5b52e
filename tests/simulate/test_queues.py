"""Queues whose waits are known, and the faults of other simulators that numbers can show."""

import numpy as np
import pytest

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.sizing import limits_for
from cbjax.metrics import request_latencies, summarise
from cbjax.simulate import costs, histogram, simulate, stream_of_columns
from cbjax.simulate.book import COLUMNS
from cbjax.simulate.results import describe_gaps, tables

SIZE = 1 << 15  # one program for all
POLICY = policies.orca(max_bs=1)
LIMITS = limits_for(POLICY, block_size=1, num_blocks=64, max_length=64, window=7, tables=False)
SYSTEM = system(LIMITS, block_size=1, num_blocks=64, max_length=64)


def served(arrival_s, cost, *, prompt=1, max_tokens=1):
    """One request at a time, first come, first served."""
    count = len(arrival_s)
    stream = stream_of_columns(
        np.asarray(arrival_s), np.full(count, prompt), np.full(count, max_tokens), LIMITS,
        size=SIZE,
    )
    return simulate(stream, POLICY, cost, LIMITS, system=SYSTEM)


def waits_ns(done) -> np.ndarray:
    """From arrival to the start of service, in whole nanoseconds."""
    kept = done.kept.astype(np.int64)
    column = {name: kept[:, place] for place, name in enumerate(COLUMNS)}
    return (column["admitted_s"] - column["arrival_s"]) * 10**9 + (
        column["admitted_ns"] - column["arrival_ns"]
    )


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_mean_wait_of_poisson_arrivals_at_a_constant_server(load):
    """M/D/1: load / (2 (1 - load)) service times (Pollaczek-Khinchine), within 99 % confidence."""
    service, count = 0.01, 30_000
    arrival = np.cumsum(np.random.default_rng(3).exponential(service / load, count))
    waits = waits_ns(served(arrival, costs.linear(base_s=service)))[2000:] / 1e9
    expected = load / (2 * (1 - load)) * service
    # A request may also arrive while nothing runs, and is then served at once: no grid of time.
    means = waits.reshape(40, -1).mean(axis=1)
    error = 2.708 * means.std(ddof=1) / np.sqrt(len(means))  # Student, 39 degrees of freedom
    assert abs(means.mean() - expected) < error
    assert error < 0.15 * expected, "an interval this wide would pass anything"


def test_waits_of_a_fixed_rate_overload():
    """Every 8 ms a request that takes 10 ms: request i waits 2 i ms, to the nanosecond."""
    done = served(np.arange(1000) * 0.008, costs.linear(base_s=0.01))
    assert np.array_equal(waits_ns(done), np.arange(1000) * 2_000_000)


def test_waits_of_an_overload_with_answers():
    """Three iterations of 10 ms each, one a token: request i waits 22 i ms at one per 8 ms."""
    done = served(np.arange(200) * 0.008, costs.linear(base_s=0.01), max_tokens=3)
    assert np.array_equal(waits_ns(done), np.arange(200) * 22_000_000)
    assert done.iteration_count == 600


def test_time_to_the_first_token_is_no_gap():
    """FAULTS I1 and I4: tokens at 1.0, 1.1 and 1.2 s; TTFT 1.0, ITL 0.1, TPOT over n - 1."""
    done = served([0.0], costs.replayed([1.0, 0.1, 0.1]), max_tokens=3)
    row = request_latencies(tables(done).requests).row(0, named=True)
    assert row["ttft_s"] == 1.0 and row["max_itl_s"] == 0.1 and row["tpot_s"] == 0.1
    gaps = describe_gaps(done)
    assert gaps["count"] == 2 and gaps["max"] == 0.1
    assert gaps["mean"] == pytest.approx(0.1, rel=histogram.MOST_RELATIVE_ERROR)


def test_an_answer_of_one_token_has_no_gap():
    """FAULTS I4 and I11: it is absent from ITL and TPOT, not 0; the percentile rule is stated."""
    done = served([0.0, 0.5], costs.linear(base_s=0.25))
    made = tables(done)
    assert made.requests["max_itl_s"].to_list() == [None, None]
    summary = summarise(
        made.requests, made.iterations, memory=made.memory, backend="simulated",
        itl_s=describe_gaps(done),
    )
    assert summary["metrics"]["itl_s"]["count"] == 0 and summary["metrics"]["tpot_s"]["count"] == 0
    assert "linear" in summary["rules"]["percentiles"]


def test_the_same_stream_twice_in_one_process_is_the_same():
    """FAULTS I10: a simulation starts cold; nothing is left over from the one before."""
    arrival = np.arange(50) * 0.003
    one, other = (served(arrival, costs.linear(base_s=0.004), max_tokens=4) for _ in range(2))
    assert np.array_equal(one.kept, other.kept)
    assert np.array_equal(one.iterations, other.iterations)


def test_what_never_fits_is_refused_and_the_rest_is_served():
    count = 6
    stream = stream_of_columns(
        np.zeros(count), np.array([1, 0, 100, 3, 64, 2]), np.full(count, 2), LIMITS, size=SIZE
    )
    done = simulate(stream, POLICY, costs.linear(base_s=1.0), LIMITS, system=SYSTEM)
    rows = tables(done).requests
    assert rows["finish_reason"].to_list() == [
        "length", "refused", "refused", "length", "refused", "length"
    ]
    assert rows["error"][1].startswith("empty_prompt")
    assert rows["finished_s"].to_list()[::1][0] == 2.0 and rows["finished_s"][5] == 6.0


def test_times_stay_exact_for_a_day():
    """After 24 h a wait of a millisecond is still a millisecond."""
    done = served([86_400.0, 86_400.001], costs.linear(base_s=0.002))
    assert waits_ns(done).tolist() == [0, 1_000_000]
