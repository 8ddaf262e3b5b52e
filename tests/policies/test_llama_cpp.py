"""llama.cpp and Ollama beside their oracle, and scenarios checked by hand."""

import pytest

from cbjax.parity.workload import Request, Workload
from tests.policies.beside import Case, array_log, mismatch, oracle_log
from tests.policies.test_oracles import compare, describe

QUICK = {
    "llama_cpp": 300, "llama_cpp remembering": 300, "ollama": 200, "ollama remembering": 200,
}


def case(
    requests, num_blocks=64, block_size=1, max_length=48, aborts=(), name="llama_cpp", **knobs
):
    """Requests as (arrival, prompt or tokens, output)."""
    made = []
    for id, (arrival, prompt, output) in enumerate(requests):
        text = () if isinstance(prompt, int) else tuple(prompt)
        made.append(Request(id, arrival, len(text) or prompt, output, token_ids=text))
    own = dict(n_batch=64, kv_unified=True) if name == "llama_cpp" else dict(num_batch=64)
    knobs = own | knobs
    return Case(
        name, knobs, block_size, num_blocks, max_length, Workload(tuple(made), tuple(aborts)),
    )


def both(requests, *numbers, **knobs):
    """The array policy's log, after checking that the oracle says the same."""
    one = case(requests, *numbers, **knobs)
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return log


def scheduled(log):
    return [dict(entry.scheduled) for entry in log]


def cached(log):
    return dict(one for entry in log for one in entry.cached)


def refused(log):
    return {id: (word, entry.iteration) for entry in log for id, word in entry.refused}


def known_and_needed(seen, name):
    """The workloads must reach what they are drawn for."""
    total = seen["workloads"]
    for what in ("refused", "aborted", "stopped", "backlog"):
        assert seen[what] >= total / 20, what
    if name.startswith("llama_cpp"):
        assert seen["preempted"] >= total / 10 and seen["kv_overflow"] >= total / 20
    assert bool(seen["hits"]) == name.endswith("remembering")
    if seen["hits"]:
        assert seen["hits"] >= total / 5


@pytest.mark.parametrize("name", QUICK)
def test_it_decides_as_its_oracle(name, report_line):
    seen = compare(name, QUICK[name])
    report_line(describe(name, seen))
    assert seen["workloads"] >= QUICK[name]
    known_and_needed(seen, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_it_decides_as_its_oracle_on_many_more(name, report_line):
    seen = compare(name, 1000)
    report_line(describe(name, seen))
    known_and_needed(seen, name)


# Slots and the batch.


def test_prompts_are_served_in_the_order_of_slots_not_of_arrival():
    """Of slots never used the last is taken first: request 0 gets slot 1, request 1 slot 0."""
    log = both([(0, 6, 2), (0, 6, 2)], n_parallel=2, n_batch=8)
    assert scheduled(log) == [{0: 2, 1: 6}, {0: 4, 1: 1}, {0: 1}]
    assert log[0].new == (0, 1)


def test_a_released_slot_is_reused_after_those_released_before():
    """Slot 1 is free from the start; slot 0 was released by request 1. 2 gets 1, and 3 gets 0."""
    requests = [(0, 1, 9), (0, 1, 2), (3, 5, 1), (3, 5, 1)]
    log = both(requests, n_parallel=3, n_batch=7)
    # Slots: 0 in 2, 1 in 1. Then 2 in the slot 0 that was never used, 3 in slot 1.
    assert scheduled(log)[3] == {0: 1, 2: 5, 3: 1}


def test_a_long_prompt_never_keeps_a_generating_slot_waiting():
    """FAULTS A5: the prompt takes what the batch has left; the decode goes on in each iteration."""
    log = both([(0, 2, 8), (1, 20, 2)], n_parallel=2, n_batch=5)
    assert scheduled(log)[:7] == [{0: 2}] + [{0: 1, 1: 4}] * 5 + [{0: 1, 1: 1}]


def test_the_lowest_slot_takes_all_it_wants():
    """FAULTS A9: two prompts may be half computed at once; the higher one starves meanwhile."""
    log = both([(0, 9, 1), (0, 9, 1)], n_parallel=2, n_batch=4)
    assert scheduled(log) == [{1: 4}, {1: 4}, {1: 1, 0: 3}, {0: 4}, {0: 2}]


def test_without_continuous_batching_prompts_wait_until_nobody_generates():
    requests = [(0, 2, 3), (1, 4, 2), (1, 4, 2)]
    log = both(requests, n_parallel=3, n_batch=6, cont_batching=False)
    assert scheduled(log) == [{0: 2}, {0: 1}, {0: 1}, {2: 4, 1: 2}, {2: 1}, {1: 2}, {1: 1}]
    # They hold their slots all the while.
    assert [entry.running for entry in log[:3]] == [1, 3, 3]


def test_who_finds_no_slot_waits_in_order():
    log = both([(0, 1, 2), (0, 1, 1), (0, 1, 1), (1, 1, 1)], n_parallel=1)
    assert [entry.new for entry in log] == [(0,), (), (1,), (2,), (3,)]
    assert [entry.limited_by for entry in log] == ["seats"] * 4 + ["queue_empty"]


# Cells.

TWO = [(0, 3, 5), (0, 3, 5)]


def test_an_overflow_defers_the_highest_slot():
    """Request 0 is in slot 1: it came first and yet makes room (FAULTS B1: 3 + 2 are recomputed).

    8 cells: 6 for the prompts, 2 for the second tokens; then request 1 goes on alone and ends with
    7 cells. FAULTS C15: its last token needs none.
    """
    log = both(TWO, num_blocks=8, n_parallel=2)
    assert scheduled(log) == [
        {0: 3, 1: 3}, {0: 1, 1: 1}, {1: 1}, {1: 1}, {1: 1}, {0: 5}, {0: 1}, {0: 1},
    ]
    assert log[2].preempted == (0,) and log[2].limited_by == "preempting"
    assert log[3].limited_by == "blocks" and log[5].resumed == (0,)


def test_of_several_the_lower_slot_is_back_first():
    """Slots 3 (request 0) and 2 make room; 2 was deferred last and is first in line."""
    log = both([(0, 2, 9)] * 4, num_blocks=10, n_parallel=4, max_length=10)
    assert log[0].new == (0, 1, 2, 3)
    shortage = next(entry for entry in log if entry.preempted)
    assert shortage.iteration == 1 and shortage.preempted == (0,)
    again = next(entry for entry in log[2:] if entry.preempted)
    assert again.preempted == (1,) and again.queue == (1, 0)


def test_a_request_starts_only_when_what_it_knows_fits():
    """FAULTS A2: strictly first come, first served; the small one behind it waits as well."""
    log = both([(0, 5, 3), (0, 6, 1), (0, 1, 1)], num_blocks=8, n_parallel=3)
    assert [entry.new for entry in log] == [(0,), (), (), (1, 2)]
    assert [entry.limited_by for entry in log[:3]] == ["blocks"] * 3


def test_the_original_ends_all_that_run_when_cells_run_out():
    """The same 8 cells: the third tokens find none. Whoever waits gets a slot at once."""
    log = both([*TWO, (1, 4, 1)], num_blocks=8, n_parallel=2, overflow="abort_all")
    assert scheduled(log) == [{0: 3, 1: 3}, {0: 1, 1: 1}, {}, {2: 4}]
    assert refused(log) == {0: ("kv_overflow", 3), 1: ("kv_overflow", 3)}
    assert log[3].free_blocks == 4


def test_what_fits_before_an_overflow_is_computed():
    """With 9 cells the lower slot, request 1, gets its third token, which may be its last."""
    log = both(TWO, num_blocks=9, n_parallel=2, overflow="abort_all")
    assert scheduled(log)[2:] == [{1: 1}, {}]
    assert set(refused(log)) == {0, 1}
    log = both([(0, 3, 5), (0, 3, 3)], num_blocks=9, n_parallel=2, overflow="abort_all")
    assert log[2].finished == (1,) and set(refused(log)) == {0}


def test_an_overflow_cuts_a_prompt_in_the_middle():
    """Generating slots come first in the batch, whatever their index; then what is left."""
    log = both([(0, 3, 5), (1, 7, 2)], num_blocks=8, n_parallel=2, overflow="abort_all")
    assert scheduled(log) == [{0: 3}, {0: 1, 1: 4}, {}]
    assert set(refused(log)) == {0, 1}


def test_without_a_shared_cache_each_slot_owns_a_full_part_from_the_start():
    """And nothing ever overflows: 8 cells, two slots of 4."""
    log = both(
        [(0, 1, 9), (1, 1, 9)], num_blocks=8, n_parallel=2, kv_unified=False, max_length=4
    )
    assert [entry.free_blocks for entry in log[:2]] == [4, 0]
    assert not any(entry.preempted for entry in log)
    assert [entry.finished for entry in log][-2:] == [(0,), (1,)]


def test_cells_beyond_the_context_size_are_nobodys():
    with_fewer = both(TWO, num_blocks=32, n_parallel=2, ctx_size=8, max_length=8)
    small = both(TWO, num_blocks=8, n_parallel=2, max_length=8)
    assert scheduled(with_fewer) == scheduled(small)
    assert min(entry.free_blocks for entry in with_fewer) == 24


def test_what_can_never_fit_is_refused_and_the_rest_is_served():
    """FAULTS A1, A3, E2 and E3: 4 blocks of 4; 20 tokens never fit, absurd numbers are clamped."""
    log = both([(0, 20, 1), (0, 4, 0), (0, 4, 10**6)], 4, 4, n_parallel=2)
    assert refused(log) == {0: ("never_fits", 0)}
    ended = {id: entry for entry in log for id in entry.finished}
    assert set(ended) == {1, 2}


def test_an_abort_in_the_middle_of_a_prompt_returns_everything():
    """FAULTS D1 and D3: abort twice, unknown, before the first step, and half-way."""
    aborts = [(2, 0), (3, 0), (1, 1), (2, 9)]
    log = both([(0, 9, 3), (1, 3, 1), (4, 9, 1)], 10, n_parallel=1, n_batch=3, aborts=aborts)
    assert scheduled(log) == [{0: 3}, {0: 3}, {}, {}, {2: 3}, {2: 3}, {2: 3}]
    assert log[2].free_blocks == 10


# What idle slots remember.

A, B = tuple(range(100, 124)), tuple(range(200, 224))
REMEMBER = dict(cache_prompt=True, n_parallel=2)


def test_the_slot_that_remembers_the_prompt_is_chosen():
    """A goes to slot 1 and B to slot 0; slot 1 was released first, and B is not served there."""
    log = both([(0, A[:8], 1), (1, B[:8], 1), (2, B[:12], 1), (3, A[:12], 1)], **REMEMBER)
    assert cached(log) == {0: 0, 1: 0, 2: 8, 3: 8}
    assert scheduled(log)[2:] == [{2: 4}, {3: 4}]


def test_a_share_that_is_too_small_leaves_the_choice_to_age():
    """2 of 8 tokens are in slot 0, which was released last: more than 0.1, not more than 0.25."""
    requests = [(0, A[:8], 1), (1, B[:8], 1), (2, B[:2] + A[2:8], 1)]
    assert cached(both(requests, **REMEMBER))[2] == 2
    for share in (0.25, 0.0):
        assert cached(both(requests, slot_prompt_similarity=share, **REMEMBER))[2] == 0


def test_the_oldest_slot_may_still_remember_a_part():
    """Too little to be chosen for it, and reused all the same."""
    requests = [(0, A[:8], 1), (1, A[:2] + B[:6], 1)]
    log = both(requests, slot_prompt_similarity=0.9, cache_prompt=True, n_parallel=1)
    assert cached(log)[1] == 2


def test_a_slot_remembers_its_last_request_alone():
    """The third request's tail was in the slot before the second took it."""
    requests = [(0, A[:12], 1), (1, A[:3] + B[:3], 1), (2, A[:12], 1)]
    assert cached(both(requests, cache_prompt=True, n_parallel=1)) == {0: 0, 1: 3, 2: 3}


def test_running_requests_share_nothing():
    assert cached(both([(0, A[:8], 4), (1, A[:8], 1)], **REMEMBER))[1] == 0


@pytest.mark.parametrize(("length", "reused"), [(7, 4), (8, 4), (9, 8)])
def test_one_token_is_always_computed(length, reused):
    """FAULTS C1: the same prompt twice, blocks of 4."""
    log = both([(0, A[:length], 1), (1, A[:length], 1)], 12, 4, **REMEMBER)
    assert cached(log) == {0: 0, 1: reused}


def test_only_the_whole_beginning_counts():
    """FAULTS C6: the second block is alike, the first is not."""
    assert cached(both([(0, A[:8], 1), (1, B[:4] + A[4:9], 1)], 12, 4, **REMEMBER))[1] == 0


def test_outputs_are_remembered_too():
    """The conversation goes on: 4 tokens of prompt and 4 of the 5 outputs have KV."""
    outputs = tuple(1_000_000 + index for index in range(5))
    log = both([(0, A[:4], 5), (5, A[:4] + outputs + B[:3], 1)], **REMEMBER)
    assert cached(log)[1] == 8


THREE = dict(num_blocks=12, max_length=12, cache_prompt=True, n_parallel=3)


def cleared(last):
    """A and B, a third that needs their cells, and one that begins like `last`."""
    third = tuple(range(300, 306))
    return [(0, A[:4], 1), (0, B[:4], 1), (1, third, 1), (2, last[:6], 1)]


def test_idle_slots_are_cleared_one_by_one_from_the_lowest():
    """12 cells: slot 2 remembers A (4), slot 1 B (4). 6 more need 2 of them: B goes, A stays.

    FAULTS C7: what was cleared is not found again.
    """
    assert cached(both(cleared(A), **THREE))[3] == 4
    assert cached(both(cleared(B), **THREE))[3] == 0


def test_idle_slots_are_cleared_before_anybody_makes_room():
    log = both([(0, A[:6], 1), (1, B[:2], 9), (2, B[2:4], 1)], 12, max_length=12, **REMEMBER)
    assert not any(entry.preempted for entry in log)
    assert log[-1].free_blocks == 2


def test_who_makes_room_is_forgotten():
    """Recomputed in full: 5 tokens, none of them found."""
    requests = [(0, A[:3], 5), (0, B[:3], 5)]
    log = both(requests, 8, max_length=8, **REMEMBER)
    assert log[2].preempted == (0,)
    assert dict(log[5].cached) == {0: 0} and scheduled(log)[5] == {0: 5}


# Ollama.


def test_ollama_serves_one_at_a_time_with_a_full_context():
    log = both([(0, 4, 2), (0, 4, 2)], 32, max_length=16, name="ollama")
    assert scheduled(log) == [{0: 4}, {0: 1}, {1: 4}, {1: 1}]
    assert log[0].free_blocks == 16


def test_ollama_ends_a_request_at_the_full_context():
    log = both([(0, 4, 99)], 32, max_length=8, name="ollama")
    assert log[-1].finished == (0,) and log[-1].finish_reasons == ("length",)
    assert sum(map(len, scheduled(log))) == 4


def test_ollama_remembers_the_conversation():
    knobs = dict(name="ollama", max_length=16, cache_prompt=True)
    assert cached(both([(0, A[:8], 1), (1, A[:10], 1)], 32, **knobs))[1] == 8
