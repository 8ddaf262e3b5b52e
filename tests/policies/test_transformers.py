"""transformers' continuous batching: rules written out by hand, knobs, and faults of others."""

import pytest

from cbjax import policies
from cbjax.core.invariants import check
from cbjax.core.limits import system
from cbjax.core.state import initial_state
from cbjax.parity.driver import run_on_host, run_watched
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import LIMITS, Case, array_log, mismatch, oracle_log

WIDE = dict(max_batch_tokens=64, max_requests_per_batch=6, safety_margin=0.0)


def serve(requests, num_blocks, swap_blocks=0, aborts=(), **knobs):
    """The array policy's log on blocks of 4, after checking that the oracle says the same."""
    workload = Workload(tuple(Request(id, *one) for id, one in enumerate(requests)), tuple(aborts))
    case = Case("transformers", WIDE | knobs, 4, num_blocks, 48, workload, swap_blocks)
    log = array_log(case)
    assert mismatch(log, oracle_log(case)) is None
    return log


def rows(log, name):
    return [getattr(entry, name) for entry in log]


def test_who_gets_no_block_keeps_the_seat_while_others_go_on():
    # 5 blocks: in iteration 1 requests 1 and 2 need one more each, and one is left for request 0.
    log = serve([(0, 4, 9), (0, 8, 5), (0, 6, 3)], num_blocks=6)
    first, second = log[:2]
    assert first.scheduled == ((0, 4), (1, 8), (2, 6)) and first.free_blocks == 1
    # Request 0 takes the last block. Request 1 starves, is the newest of those that do, and goes;
    # request 2 needs no block and decodes past it.
    assert second.scheduled == ((0, 1), (2, 1)) and second.preempted == (1,)
    assert second.free_blocks == 2 and second.limited_by == "preempting"


def test_a_starved_request_stays_while_its_elders_make_no_room():
    # Two starve: when the newer one has gone, the older one's block is there, and it waits for it.
    log = serve([(0, 4, 9), (0, 4, 9), (0, 4, 9)], num_blocks=4)
    assert log[1].scheduled == ((0, 1),) and log[1].preempted == (2,)
    assert log[1].running == 2 and log[1].free_blocks == 1
    assert log[2].scheduled == ((0, 1), (1, 1))


def test_nothing_fits_so_room_is_made_and_the_rest_is_served_in_the_same_iteration():
    log = serve([(0, 8, 6), (0, 8, 6), (1, 2, 2)], num_blocks=4)
    assert log[0].scheduled == ((0, 8), (1, 8)) and log[0].free_blocks == 0
    assert log[1].preempted == (1,) and log[1].scheduled == ((0, 1),) and log[1].free_blocks == 1
    # Nobody is admitted until a request ends, though request 2 would fit; then, in line: request 2,
    # and request 1 behind it, its known tokens computed again.
    assert set(rows(log[1:5], "limited_by")) == {"freeze"} and log[1].queue == (2, 1)
    end = next(entry.iteration for entry in log if entry.finished == (0,))
    assert all(not entry.new + entry.resumed for entry in log[1 : end + 1])
    assert log[end + 1].scheduled == ((2, 2), (1, 9))
    assert log[end + 1].new == (2,) and log[end + 1].resumed == (1,)


def test_the_host_pool_takes_the_newest_that_fits_and_returns_it_without_recomputing():
    log = serve([(0, 8, 6), (0, 8, 6)], num_blocks=4, swap_blocks=2)
    assert log[1].preempted == (1,)
    again = next(entry for entry in log if entry.resumed == (1,))
    assert again.scheduled == ((1, 1),)
    lost = serve([(0, 8, 6), (0, 8, 6)], num_blocks=4, swap_blocks=1)
    again = next(entry for entry in lost if entry.resumed == (1,))
    assert again.scheduled == ((1, 9),)


def test_offloaded_and_other_requests_take_turns():
    # 2 and 1 are in the host pool; 2 goes first though it stands behind 3, then turns are taken.
    log = serve([(0, 8, 9), (0, 8, 9), (1, 2, 5), (2, 2, 5)], num_blocks=7, swap_blocks=9)
    after = next(entry for entry in log if len(entry.resumed) == 2)
    assert log[after.iteration - 1].queue == (3, 2, 1)
    assert after.scheduled == ((2, 1), (3, 2), (1, 1))


def test_what_does_not_fit_is_skipped():
    """FAULTS A2: a stated rule. A request that fits passes one that does not."""
    log = serve([(0, 4, 9), (1, 30, 2), (1, 2, 2)], num_blocks=8)
    assert log[1].scheduled == ((0, 1), (2, 2)) and log[1].queue == (1,)
    assert log[1].limited_by == "blocks"


def test_a_request_that_never_fits_is_refused_and_blocks_nobody():
    """FAULTS A1."""
    log = serve([(0, 20, 3), (0, 4, 3)], num_blocks=4)
    assert log[0].refused == ((0, "never_fits"),) and log[0].scheduled == ((1, 4),)
    assert log[-1].finished == (1,)


def test_recomputed_requests_keep_their_boundary():
    """FAULTS B1, B2: outputs are computed again, and none is asked for twice."""
    log = serve([(0, 8, 6), (0, 8, 6)], num_blocks=4)
    sampled = sum(tokens for entry in log for request, tokens in entry.scheduled if request == 1)
    # 8 prompt tokens, 9 again with the one output, and a token for each of the last four outputs.
    assert sampled == 8 + 9 + 4 and log[-1].finish_reasons == ("length",)


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("swap_blocks", [0, 2, 8])
def test_invariants_hold_and_everything_returns(lag, swap_blocks):
    """FAULTS A11, C10, C15, D1: one state per request; every block returns, after aborts too."""
    requests = [(0, 8, 9), (0, 7, 9), (1, 9, 12), (1, 3, 1), (2, 6, 9), (2, 12, 9)]
    workload = Workload(
        tuple(Request(id, *one) for id, one in enumerate(requests)), ((3, 1), (4, 1), (9, 5))
    )
    numbers = system(LIMITS, block_size=4, num_blocks=6, max_length=48, swap_blocks=swap_blocks)
    states, last = [], [None]

    def look(state, plan):
        if plan is not None:
            check(state, LIMITS, plan)
        else:
            last[0] = check(state, LIMITS, None, last[0])
            states.append(state)

    policy = policies.transformers(**WIDE, use_async_batching=lag)
    log = run_on_host(policy, workload, LIMITS, numbers, check=look)
    assert any(rows(log, "preempted")) and any(rows(log, "resumed"))
    end = states[-1]
    assert (int(end.blocks.free), int(end.swap_free)) == (6, swap_blocks)
    ended = [request for entry in log for request in entry.finished]
    assert sorted(ended + [1, 5]) == list(range(6))


def test_with_lag_a_victim_loses_the_token_under_way():
    requests = [(0, 8, 6), (0, 8, 6)]
    log = serve(requests, num_blocks=4, use_async_batching=True)
    again = next(entry for entry in log if entry.resumed == (1,))
    # 8 known tokens instead of 9: the output of the iteration before was not in yet.
    assert again.scheduled == ((1, 8),)


def test_with_lag_a_useless_step_that_finds_no_block_ends_nobody_else():
    """FAULTS A3: the original raises where a lone request fills the pool; here it just ends."""
    log = serve([(0, 8, 5), (4, 2, 2)], num_blocks=3, use_async_batching=True)
    end = next(entry for entry in log if 0 in entry.finished)
    assert log[end.iteration + 1].scheduled in ((), ((1, 1),))
    assert 1 in log[-2].finished + log[-1].finished


def test_a_token_is_delivered_once_though_it_is_computed_twice():
    """A victim whose last token was under way ends once, and its row returns in the end."""
    requests = [(0, 4, 12), (0, 8, 2), (0, 4, 12)]
    log = serve(requests, num_blocks=4, use_async_batching=True)
    ended = [request for entry in log for request in entry.finished]
    assert sorted(ended) == [0, 1, 2]


def test_aborts_end_the_freeze():
    """Without it the queue would wait for ever for a request to end."""
    log = serve([(0, 8, 6), (0, 8, 6)], num_blocks=4, aborts=[(2, 0)])
    assert log[1].preempted == (1,)
    assert log[2].aborted == (0,) and log[2].resumed == (1,)


BASE = [(0, 10, 6), (0, 12, 6), (0, 3, 6), (1, 9, 6), (1, 7, 6), (2, 5, 6)]
ONE_BY_ONE = [(id, 8 + id, 6) for id in range(6)]
IN_PAIRS = [(id // 2, 20, 5) for id in range(6)]


@pytest.mark.parametrize(
    ("before", "after", "work", "num_blocks"),
    [
        ({}, dict(max_batch_tokens=16), BASE, 20),
        ({}, dict(max_requests_per_batch=2), BASE, 20),
        ({}, dict(safety_margin=0.4), BASE, 16),
        (
            dict(safety_margin=None),
            dict(safety_margin=None, scheduler_type="prefill_first"), IN_PAIRS, 16,
        ),
        (
            dict(max_batch_tokens=14),
            dict(max_batch_tokens=14, scheduler_type="prefill_first"), BASE, 20,
        ),
        (dict(read_budget=48), dict(read_budget=80), ONE_BY_ONE, 20),
        (dict(max_blocks_per_request=0, read_budget=48), dict(read_budget=48), BASE, 20),
        ({}, dict(use_async_batching=True), BASE, 20),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_every_knob_changes_a_decision(before, after, work, num_blocks):
    case = [serve(work, num_blocks, **knobs) for knobs in (before, after)]
    assert rows(case[0], "scheduled") != rows(case[1], "scheduled")


def test_the_fast_path_and_the_walks_are_told():
    numbers = system(LIMITS, block_size=4, num_blocks=4, max_length=48)
    workload = Workload((Request(0, 0, 8, 6), Request(1, 0, 8, 6)))

    def told(**knobs):
        turns = run_watched(
            policies.transformers(**WIDE, **knobs), workload, LIMITS, numbers, watch=_told
        )
        return [(bool(one["fast"]), int(one["attempts"])) for _, one in turns][:3]

    assert told() == [(False, 1), (True, 2), (True, 1)]
    # Position 8 lies behind two blocks.
    assert told(max_blocks_per_request=2) == [(False, 1), (False, 2), (False, 1)]


def _told(state, plan):
    return dict(fast=state.policy.fast, attempts=state.policy.attempts)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        (dict(max_batch_tokens=0), "max_batch_tokens = 0"),
        (dict(max_requests_per_batch=1.5), "max_requests_per_batch = 1.5"),
        (dict(scheduler_type="lifo"), "scheduler_type = 'lifo'.*prefill_first"),
        (dict(max_blocks_per_request=-1), "max_blocks_per_request = -1"),
        (dict(safety_margin=1.0), "safety_margin = 1.0"),
        (dict(read_budget=-4), "read_budget = -4"),
    ],
)
def test_impossible_values_are_named(knobs, words):
    with pytest.raises(ValueError, match=words):
        policies.transformers(**knobs)


def test_a_read_budget_that_cannot_hold_one_request_is_refused():
    policy = policies.transformers(**WIDE, read_budget=20)
    numbers = system(LIMITS, block_size=4, num_blocks=20, max_length=48)
    with pytest.raises(ValueError, match="read_budget = 20 is below the 48 tokens"):
        initial_state(policy, LIMITS, numbers)
