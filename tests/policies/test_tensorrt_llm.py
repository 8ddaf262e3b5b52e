"""TensorRT-LLM: scenarios checked by hand, and its knobs."""

import sys

import numpy as np
import pytest

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.state import initial_state
from cbjax.parity.driver import run_watched
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import LIMITS, Case, array_log, mismatch, oracle_log
from tests.policies.test_mutants import with_rules

MODULE = sys.modules["cbjax.policies.tensorrt_llm"]  # the package's name is the function's

CHUNKS = dict(enable_chunked_prefill=True)
EVICTS = dict(capacity_scheduler_policy="MAX_UTILIZATION")
STATIC = dict(capacity_scheduler_policy="STATIC_BATCH")


def case(requests, num_blocks, block_size=1, max_length=48, **knobs):
    knobs = dict(max_batch_size=4, max_num_tokens=48) | knobs
    workload = Workload(tuple(Request(id, *one) for id, one in enumerate(requests)))
    return Case("tensorrt_llm", knobs, block_size, num_blocks, max_length, workload)


def both(requests, num_blocks, **more):
    """The array policy's log, after checking that the oracle says the same."""
    one = case(requests, num_blocks, **more)
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return log


def starts(log):
    return {id: entry.iteration for entry in log for id in entry.new}


def test_no_evict_promises_the_whole_output_and_takes_blocks_as_tokens_come():
    """FAULTS E5: 10 of 15 blocks are promised to the first, so 8 are not left for the second."""
    log = both([(0, 4, 6), (0, 4, 4)], 15)
    assert log[0].scheduled == ((0, 4),) and log[0].free_blocks == 11
    assert log[0].limited_by == "blocks"
    assert [entry.free_blocks for entry in log[:6]] == [11, 10, 9, 8, 7, 6]
    assert starts(log) == {0: 0, 1: 6}
    assert not any(entry.preempted for entry in log)


def test_no_evict_blocks_all_behind_the_head():
    """FAULTS A2: stated, not accidental: two small ones wait behind one that does not fit."""
    log = both([(0, 2, 4), (0, 8, 2), (0, 1, 1), (0, 1, 1)], 12)
    assert log[0].scheduled == ((0, 2),) and log[0].queue == (1, 2, 3)
    assert log[0].limited_by == "blocks"


def test_max_utilization_pauses_the_youngest_and_recomputes_it():
    """FAULTS B1: prompt and outputs are computed again, and the output is complete."""
    log = both([(0, 4, 6), (0, 4, 6)], 13, **EVICTS)
    assert log[0].scheduled == ((0, 4), (1, 4))
    [paused] = [entry for entry in log if entry.preempted]
    # 4 + 4 prompt tokens and two decodes each leave one block for two more.
    assert paused.iteration == 3 and paused.preempted == (1,) and paused.scheduled == ((0, 1),)
    assert paused.queue == (1,) and paused.limited_by == "preempting"
    [back] = [entry for entry in log if entry.resumed]
    assert dict(back.scheduled)[1] == 4 + 3
    assert sum(dict(entry.scheduled).get(1, 0) > 0 for entry in log) == 6
    assert all(entry.finish_reasons == ("length",) for entry in log if entry.finished)


def test_max_utilization_keeps_the_order_of_arrival_through_a_pause():
    log = both([(0, 4, 9), (0, 4, 9), (1, 3, 9), (1, 3, 9)], 18, **EVICTS)
    assert any(entry.preempted for entry in log)
    for entry in log:
        assert list(entry.queue) == sorted(entry.queue)
        assert list(entry.preempted) == sorted(entry.preempted, reverse=True)


def test_max_utilization_can_pause_one_and_start_an_older_one_at_once():
    """The second got no chunk at first, the third did; then the third makes room for it."""
    chunks = CHUNKS | EVICTS | dict(max_num_tokens=8, chunk_unit_size=8)
    log = both([(0, 6, 3), (0, 7, 3), (0, 2, 8)], 15, **chunks)
    assert dict(log[0].scheduled) == {0: 6, 2: 2}
    assert log[1].preempted == (2,) and log[1].new == (1,)
    assert dict(log[1].scheduled) == {0: 1, 1: 7}


def test_max_utilization_takes_no_block_for_the_last_token():
    """FAULTS C15: the pool holds all that is ever attended to, and nothing is paused."""
    log = both([(0, 4, 5), (0, 4, 5)], 16, **EVICTS)
    assert not any(entry.preempted for entry in log)
    assert min(entry.free_blocks for entry in log) == 0


def test_static_batch_starts_only_when_nothing_decodes():
    log = both([(0, 2, 3), (0, 2, 5), (0, 2, 2)], 40, **STATIC, max_batch_size=2)
    assert starts(log) == {0: 0, 1: 0, 2: 5}
    assert {entry.limited_by for entry in log[1:5]} == {"batch_running"}


def test_static_batch_stalls_its_own_unfinished_prompts():
    """The second prompt's rest waits until the first, which decodes, has ended."""
    log = both([(0, 4, 3), (0, 20, 2)], 40, **STATIC, **CHUNKS, max_num_tokens=10)
    assert [dict(entry.scheduled) for entry in log[:4]] == [{0: 4, 1: 6}, {0: 1}, {0: 1}, {1: 10}]


def test_a_request_that_never_fits_ends_at_the_door():
    """FAULTS A1: the one behind it runs; the original waits for ever."""
    log = both([(0, 20, 4), (0, 4, 4)], 4, block_size=4)
    assert log[0].refused == ((0, "never_fits"),)
    assert log[0].scheduled == ((1, 4),)


def test_outputs_are_clamped_to_the_pool():
    """FAULTS E2, E3: no number or too large a one reserves what there is."""
    for max_tokens in (0, 1000):
        log = both([(0, 4, max_tokens)], 16)
        assert len(log) == 12 and log[-1].finished == (0,)


# The micro-batch stage.


def test_first_come_first_served_lets_a_short_prompt_overtake():
    """7 of 10 tokens go to the first; 3 are no whole unit for the second, but enough for the
    third."""
    log = both(
        [(0, 7, 2), (0, 6, 2), (0, 2, 2)], 40, **CHUNKS, max_num_tokens=10, chunk_unit_size=4,
    )
    assert dict(log[0].scheduled) == {0: 7, 2: 2}
    assert log[0].queue == (1,) and log[0].limited_by == "budget"


def test_chunks_are_rounded_down_to_blocks():
    log = both([(0, 30, 2)], 12, block_size=4, **CHUNKS, max_num_tokens=10)
    assert [dict(entry.scheduled)[0] for entry in log] == [8, 8, 8, 6, 1]
    # All blocks of the prompt are taken with its first chunk.
    assert log[0].free_blocks == 12 - 8


def test_equal_progress_gives_a_unit_to_each_in_turn():
    equal = CHUNKS | dict(context_chunking_policy="EQUAL_PROGRESS", chunk_unit_size=4)
    log = both([(0, 20, 2), (0, 5, 2)], 48, **equal, max_num_tokens=12)
    assert dict(log[0].scheduled) == {0: 8, 1: 4}
    # A unit does not fit what is left, the last token of the second does.
    log = both([(0, 20, 2), (0, 5, 2)], 48, **equal, max_num_tokens=9)
    assert dict(log[0].scheduled) == {0: 4, 1: 5}


def test_one_decode_stops_all_prefill_if_the_unit_is_the_budget():
    log = both([(0, 8, 4), (0, 12, 2)], 48, **CHUNKS, max_num_tokens=8, chunk_unit_size=8)
    assert starts(log) == {0: 0, 1: 4}
    assert {entry.limited_by for entry in log[1:4]} == {"budget"}


def test_without_chunks_a_prompt_beyond_the_budget_is_refused():
    log = both([(0, 9, 2), (0, 8, 2)], 40, max_num_tokens=8)
    assert log[0].refused == ((0, "prompt_exceeds_iteration"),)
    assert log[0].scheduled == ((1, 8),)


def test_a_paused_request_may_outgrow_the_budget():
    """Without chunks; the original fails here. It takes whole iterations until it is through."""
    log = both([(0, 6, 12), (0, 7, 8)], 20, **EVICTS, max_num_tokens=16)
    assert any(entry.preempted for entry in log)
    log = both([(0, 6, 10), (0, 7, 8)], 20, **EVICTS, max_num_tokens=8)
    again = [entry.iteration for entry in log if entry.resumed]
    grants = [dict(entry.scheduled).get(1, 0) for entry in log[again[0] :]]
    assert grants[0] == 8 and grants[1] > 1
    assert log[-1].finished == (1,)


def test_many_partial_prefills_at_once():
    """FAULTS A9."""
    log = both(
        [(0, 5, 2), (0, 5, 2)], 40, **CHUNKS, max_num_tokens=3, chunk_unit_size=1,
        context_chunking_policy="EQUAL_PROGRESS",
    )
    assert [dict(entry.scheduled) for entry in log[:2]] == [{0: 2, 1: 1}, {0: 2, 1: 1}]
    assert {id for entry in log for id in entry.finished} == {0, 1}


def test_a_long_chunked_prompt_does_not_stall_a_decode():
    """FAULTS A5."""
    log = both([(0, 2, 30), (1, 32, 2)], 64, **EVICTS, **CHUNKS, max_num_tokens=3)
    assert all(dict(entry.scheduled).get(0) for entry in log[:30])
    assert any(1 in entry.finished for entry in log[:20])


def test_an_older_prompt_that_could_not_start_yet_makes_a_younger_one_leave():
    """Request 1 needs a whole chunk unit, request 2 does not and starts before it."""
    late = case(
        [(0, 7, 10), (0, 16, 2), (5, 5, 6)], 10, block_size=4, max_num_tokens=8, chunk_unit_size=8,
        context_chunking_policy="EQUAL_PROGRESS", **CHUNKS, **EVICTS,
    )
    log = array_log(late)
    assert mismatch(log, oracle_log(late)) is None
    assert starts(log)[2] < starts(log)[1]
    assert [entry.preempted for entry in log if entry.preempted] == [(2,)]
    by_start = with_rules((MODULE, "_by_arrival", lambda rows, line: line))
    assert mismatch(array_log(late, by_start(late.policy())), oracle_log(late)) is not None


# Waiting for company.

WAIT = dict(batch_wait_timeout_iters=2, batch_wait_max_tokens_ratio=0.5)


def test_batch_wait_holds_prompts_back_beside_decodes():
    requests = [(0, 4, 9), (1, 4, 9), (2, 4, 9)]
    log = both(requests, 60, **WAIT)
    assert starts(log) == {0: 0, 1: 3, 2: 3}
    assert [entry.limited_by for entry in log[1:3]] == ["wait_timer", "wait_timer"]
    # Enough tokens end the wait: 9 of 16.
    assert starts(both(requests, 60, **WAIT, max_num_tokens=16)) == {0: 0, 1: 2, 2: 2}


@pytest.mark.parametrize("name", sorted(WAIT))
def test_one_knob_of_the_batch_wait_alone_changes_nothing(name):
    requests = [(0, 4, 9), (1, 4, 9), (2, 4, 9)]
    assert both(requests, 60, **{name: WAIT[name]}) == both(requests, 60)


def _wake(state, plan):
    return dict(seconds=plan.wake.seconds, nanoseconds=plan.wake.nanoseconds)


def test_an_idle_engine_waits_for_a_full_batch_and_says_until_when():
    wait = dict(batch_wait_timeout_ms=2500)
    requests = [(1, 4, 3), (2, 4, 3), (4, 4, 3)]
    log = both(requests, 60, **wait)
    # The oldest came at 1: it waits until 3.5. Later ones find a busy engine.
    assert starts(log) == {0: 4, 1: 4, 2: 4}
    assert [entry.limited_by for entry in log[1:4]] == ["wait_timer"] * 3
    one = case(requests, 60, **wait)
    turns = run_watched(one.policy(), one.workload, LIMITS, one.system(), watch=_wake)
    never = np.iinfo(np.int32).max
    assert [int(watched["seconds"]) for _, watched in turns[:5]] == [never, 3, 3, 3, never]
    assert int(turns[1][1]["nanoseconds"]) == 500_000_000
    # A full batch does not wait. The third finds both seats taken, then an idle engine.
    assert starts(both(requests, 60, **wait, max_batch_size=2)) == {0: 2, 1: 2, 2: 7}


# Knobs.


@pytest.mark.parametrize(
    "changed",
    [
        dict(max_batch_size=2), dict(max_num_tokens=16), EVICTS, STATIC,
        dict(enable_chunked_prefill=False), dict(context_chunking_policy="EQUAL_PROGRESS"),
        dict(chunk_unit_size=5), dict(batch_wait_timeout_ms=3000), WAIT,
    ],
    ids="-".join,
)
def test_knob_changes_a_decision(changed):
    requests = [(id // 3, 9 + 2 * id, 6) for id in range(6)]
    base = CHUNKS | dict(max_num_tokens=18)
    usual = both(requests, 20, block_size=4, **base)
    other = both(requests, 20, block_size=4, **(base | changed))
    assert [entry.scheduled for entry in usual] != [entry.scheduled for entry in other]


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        (dict(max_batch_size=0), "max_batch_size = 0"),
        (dict(max_num_tokens=-1), "max_num_tokens = -1"),
        (dict(capacity_scheduler_policy="NONE"), "capacity_scheduler_policy = 'NONE'"),
        (dict(context_chunking_policy="FORCE_CHUNK"), "context_chunking_policy = 'FORCE_CHUNK'"),
        (dict(chunk_unit_size=1.5), "chunk_unit_size = 1.5"),
        (dict(batch_wait_timeout_ms=-1), "batch_wait_timeout_ms = -1"),
        (dict(batch_wait_timeout_iters=-1), "batch_wait_timeout_iters = -1"),
        (dict(batch_wait_max_tokens_ratio=1.5), "batch_wait_max_tokens_ratio = 1.5"),
    ],
)
def test_impossible_values_are_named(knobs, word):
    with pytest.raises(ValueError, match=word):
        policies.tensorrt_llm(**knobs)


def test_a_unit_beyond_the_budget_is_named():
    numbers = system(LIMITS, block_size=16, num_blocks=4, max_length=48)
    for unit in (0, 16):
        policy = policies.tensorrt_llm(4, 12, enable_chunked_prefill=True, chunk_unit_size=unit)
        with pytest.raises(ValueError, match="max_num_tokens = 12 is below the chunk unit of 16"):
            initial_state(policy, LIMITS, numbers)
