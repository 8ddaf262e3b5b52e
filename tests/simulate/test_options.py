"""What may be counted or not, sweeps, closed loops and long streams; one policy throughout."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from cbjax import policies
from cbjax.core.ladder import ladder
from cbjax.core.limits import system
from cbjax.core.sizing import limits_for
from cbjax.simulate import (
    Setting,
    SimulationStalled,
    costs,
    loop,
    simulate,
    simulate_many,
    stream_of,
    stream_of_columns,
)
from cbjax.simulate.book import COLUMNS
from cbjax.simulate.results import tables
from cbjax.workload import Arrivals, Lengths, Sessions, make_sessions, workload_from_trace

POLICY = policies.vllm(max_num_batched_tokens=32, max_num_seqs=4)
LIMITS = limits_for(POLICY, block_size=4, num_blocks=64, max_length=64, window=4, tables=False)
SYSTEM = system(LIMITS, block_size=4, num_blocks=64, max_length=64)
COST = costs.linear(base_s=0.01, per_token_s=0.001)
SIZE = 64


def drawn(count=40, rate=20.0, seed=0, concurrency=0, size=SIZE):
    """Requests of mixed lengths; in a closed loop the first `concurrency` are there at 0."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1 / rate, count))
    if concurrency:
        arrival = np.where(np.arange(count) < concurrency, 0.0, -1.0)
    return stream_of_columns(
        arrival, random.integers(1, 30, count), random.integers(1, 20, count), LIMITS,
        concurrency=concurrency, size=size,
    )


def run(stream, policy=POLICY, cost=COST, numbers=SYSTEM, **options):
    return simulate(stream, policy, cost, LIMITS, system=numbers, **options)


def column(done, name):
    return done.kept[:, COLUMNS.index(name)].astype(np.int64)


def test_host_time_comes_before_every_iteration():
    stream = drawn()
    free, paid = run(stream), run(stream, host_s=0.005)
    assert tables(free).iterations["host_s"].max() == 0
    rows = tables(paid).iterations
    assert rows["host_s"].unique().to_list() == [0.005]
    gaps = rows["start_s"].diff() - rows["duration_s"].shift(1)
    assert gaps.drop_nulls().min() == pytest.approx(0.005, abs=2e-9)
    plain = run(stream, host_s=0.005, leap=False)
    assert np.array_equal(plain.kept, paid.kept)
    assert np.array_equal(plain.iterations, paid.iterations)


def test_padding_and_compilation_count_if_asked():
    stream, rungs = drawn(), ladder(LIMITS.tokens, LIMITS.seats)
    options = dict(rungs=rungs, padded=True, compile_s=0.5)
    counted = run(stream, **options)
    walked = run(stream, leap=False, **options)
    assert counted.turns < walked.turns
    for name in ("kept", "gaps", "iterations"):
        assert np.array_equal(getattr(counted, name), getattr(walked, name))
    made = tables(counted)
    rows = made.iterations
    sizes = {str(rung): rung.tokens for rung in rungs.rungs}
    compiled = made.memory["compiled"].to_numpy()
    expected = np.array([0.01 + 0.001 * sizes[rung] for rung in rows["rung"]]) + 0.5 * compiled
    np.testing.assert_allclose(rows["duration_s"].to_numpy(), expected, atol=1e-7)
    # Each rung stalls once, at its first use.
    first = rows["rung"].is_first_distinct().to_numpy()
    assert np.array_equal(compiled, first)
    assert not tables(run(stream)).memory["compiled"].any()


def test_a_closed_loop_keeps_its_clients_busy():
    done = run(drawn(concurrency=3))
    rows = tables(done).requests.sort("scheduled_arrival_s")
    ends = sorted(rows["finished_s"].to_list())
    # A request is sent when an earlier one has ended, and never more than three are inside.
    sent = rows["scheduled_arrival_s"].to_list()
    assert sent[:3] == [0.0] * 3 and sent[3:] == ends[: len(sent) - 3]
    walked = run(drawn(concurrency=3), leap=False)
    assert np.array_equal(done.kept, walked.kept) and done.turns < walked.turns


def test_a_sweep_is_its_single_runs_with_one_program():
    settings = []
    for number in range(6):
        policy = replace(
            POLICY, knobs=POLICY.knobs | {"max_num_batched_tokens": 16 + 2 * number}
        )
        cost = costs.linear(base_s=0.01, per_token_s=0.0005 * (1 + number))
        numbers = replace(SYSTEM, num_blocks=np.int32(64 - number))
        settings.append(Setting(drawn(rate=10 + number, seed=number), policy, cost, numbers))
    run(settings[0].workload, log=False)
    before = loop.compiled_advance()._cache_size()
    told = []
    together = simulate_many(
        settings, LIMITS, threads=2, progress=lambda label, done, total: told.append((done, total))
    )
    assert loop.compiled_advance()._cache_size() == before, "a setting was compiled anew"
    assert told[-1] == (6, 6)
    for setting, done in zip(settings, together, strict=True):
        alone = run(
            setting.workload, setting.policy, setting.cost, setting.system, log=False
        )
        assert np.array_equal(alone.kept, done.kept) and np.array_equal(alone.gaps, done.gaps)
    assert len({done.iteration_count for done in together}) > 1


@pytest.mark.slow
def test_a_policy_that_is_stuck_is_named():
    stuck = policies.vllm(max_num_batched_tokens=32, max_num_seqs=4, watermark=0.99)

    def decide(knobs, state, view):
        decision, state = stuck.decide(knobs, state, view)
        nobody = jax.numpy.zeros_like(decision.admit)
        return replace(decision, admit=nobody, grant=decision.grant * 0), state

    with pytest.raises(SimulationStalled, match="vllm scheduled nothing 3 times.* 1 waiting"):
        run(drawn(), replace(stuck, decide=decide, steady=None))


@pytest.mark.slow
def test_a_hundred_thousand_requests_stream_through():
    """Time per turn does not depend on the number of requests."""
    import time

    spent = {}
    for count in (10_000, 100_000):
        stream = drawn(count, rate=15.0, size=1 << 17)
        run(stream, log=False)
        begin = time.process_time()
        done = run(stream, log=False)
        spent[count] = (time.process_time() - begin) / done.turns
        assert np.all(column(done, "output_tokens") == np.asarray(stream.max_tokens)[:count])
    assert spent[100_000] < 1.5 * spent[10_000]


def test_prompts_that_share_segments_share_their_tokens():
    """A turn of a conversation begins with the turns before it, also for the simulator."""
    talk = Sessions(Lengths("fixed", 2), Lengths("fixed", 5), Lengths("fixed", 4), system_tokens=6)
    workload = workload_from_trace(make_sessions(talk, 1, Arrivals()), seed=0)
    stream = stream_of(workload, replace(LIMITS, context=32))
    first, second = stream.token_ids[:2]
    assert stream.prompt[:2].tolist() == [11, 20]
    assert first[:11].tolist() == second[:11].tolist()
    assert len(set(second[:20].tolist())) > 15, "no other part is alike"
