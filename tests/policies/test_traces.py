"""The two traces that can be checked by hand, and edge cases written out iteration by iteration."""

import pytest

from cbjax.parity.workload import Request, Workload
from tests.policies.beside import Case, array_log, mismatch, oracle_log

TRACE_A = Workload((Request(0, 0, 6, 3), Request(1, 0, 9, 3)))
VLLM_A = dict(max_num_batched_tokens=10, max_num_seqs=4)


def case(name, knobs, block_size, num_blocks, workload, max_length=48):
    return Case(name, knobs, block_size, num_blocks, max_length, workload)


def both(one):
    """The array policy's log, after checking that the oracle says the same."""
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return log


@pytest.mark.parametrize(
    ("name", "knobs", "expected"),
    [
        ("vllm", VLLM_A, [{0: 6, 1: 4}, {0: 1, 1: 5}, {0: 1, 1: 1}, {1: 1}]),
        ("orca", dict(max_bs=4), [{0: 6, 1: 9}, {0: 1, 1: 1}, {0: 1, 1: 1}]),
        (
            "static", dict(max_batch_size=4, padding="ragged"),
            [{0: 6, 1: 9}, {0: 1, 1: 1}, {0: 1, 1: 1}],
        ),
    ],
)
def test_trace_a_prefill_of_two_prompts(name, knobs, expected):
    log = both(case(name, knobs, 1, 64, TRACE_A))
    assert [dict(entry.scheduled) for entry in log] == expected
    assert [entry.extra_tokens for entry in log] == [0] * len(expected)


def test_trace_a_padded_computes_the_longest_prompt_twice():
    log = both(case("static", dict(max_batch_size=4, padding="padded"), 1, 64, TRACE_A))
    assert dict(log[0].scheduled) == {0: 6, 1: 9}
    assert log[0].extra_tokens == 3
    assert log[0].free_blocks == 64 - 2 * (9 + 3)


def test_trace_b_preemption_and_a_blocked_head():
    knobs = dict(max_num_batched_tokens=64, max_num_seqs=6)
    workload = Workload((Request(0, 0, 8, 16), Request(1, 0, 8, 16), Request(2, 0, 4, 16)))
    log = both(case("vllm", knobs, 4, 6, workload))
    first, second, *waits, sixth, seventh = log[:7]
    assert first.new == (0, 1, 2) and first.free_blocks == 1
    # The first takes the last block; the second lacks one, so the last gives up its own.
    assert second.preempted == (2,) and dict(second.scheduled) == {0: 1, 1: 1}
    assert second.free_blocks == 0 and second.limited_by == "preempting"
    for entry in waits:
        assert dict(entry.scheduled) == {0: 1, 1: 1} and entry.queue == (2,)
        assert entry.limited_by == "blocks" and entry.free_blocks == 0
    assert sixth.preempted == (1,) and sixth.free_blocks == 2 and sixth.queue == (1, 2)
    # The head needs 4 blocks; the one behind it would fit in 2 and must wait all the same.
    assert seventh.queue == (1, 2) and not seventh.resumed and seventh.limited_by == "blocks"


def test_several_victims_return_in_their_old_order():
    knobs = dict(max_num_batched_tokens=64, max_num_seqs=6, scheduler_reserve_full_isl=False)
    # The first request's second prompt chunk needs what both others hold.
    knobs["long_prefill_token_threshold"] = 8
    workload = Workload((Request(0, 0, 16, 4), Request(1, 0, 4, 4), Request(2, 0, 4, 4)))
    log = both(case("vllm", knobs, 4, 5, workload))
    assert log[1].preempted == (2, 1)
    assert log[1].queue == (1, 2)
    assert [entry.resumed for entry in log if entry.resumed][0][0] == 1


def test_a_victim_that_is_the_requester_ends_the_running_pass():
    knobs = dict(max_num_batched_tokens=64, max_num_seqs=6)
    workload = Workload((Request(0, 0, 7, 8), Request(1, 0, 4, 8)))
    log = both(case("vllm", knobs, 4, 3, workload))
    assert log[1].preempted == (1,) and dict(log[1].scheduled) == {0: 1}


def test_long_chunked_prefill_does_not_stall_a_decode():
    """FAULTS A5: the decode advances in every iteration and the prompt still finishes."""
    knobs = dict(max_num_batched_tokens=3, max_num_seqs=2)
    workload = Workload((Request(0, 0, 2, 30), Request(1, 1, 32, 2)))
    log = both(case("vllm", knobs, 4, 32, workload))
    prefill = [entry for entry in log if dict(entry.scheduled).get(1) == 2]
    assert len(prefill) == 16
    assert all(dict(entry.scheduled)[0] == 1 for entry in prefill)
    assert any(1 in entry.finished for entry in log)


def test_many_partial_prefills_at_once():
    """FAULTS A9: chunks of 2, prompts of 5, a budget of 3: both are half computed, none fails."""
    knobs = dict(
        max_num_batched_tokens=3, max_num_seqs=3, long_prefill_token_threshold=2,
    )
    workload = Workload((Request(0, 0, 5, 2), Request(1, 0, 5, 2)))
    log = both(case("vllm", knobs, 4, 8, workload))
    assert dict(log[0].scheduled) == {0: 2, 1: 1}
    assert dict(log[1].scheduled) == {0: 2, 1: 1}
    assert {id for entry in log for id in entry.finished} == {0, 1}


def test_one_output_token_ends_in_the_prefill_iteration():
    workload = Workload((Request(0, 0, 8, 1), Request(1, 0, 3, 2)))
    for name, knobs in (("vllm", VLLM_A), ("orca", dict(max_bs=4)),
                        ("static", dict(max_batch_size=4))):
        log = both(case(name, knobs, 4, 12, workload))
        assert log[0].finished == (0,), name


def test_static_keeps_its_batch_until_the_last_ends():
    """The pair that the project starts with: the third request waits although a seat is idle."""
    workload = Workload((Request(0, 0, 1, 2), Request(1, 0, 1, 4), Request(2, 0, 1, 2)))
    static = both(case("static", dict(max_batch_size=2, padding="ragged"), 4, 12, workload))
    orca = both(case("orca", dict(max_bs=2), 4, 12, workload))
    assert [entry.iteration for entry in static if 2 in entry.new] == [4]
    assert {entry.limited_by for entry in static[1:4]} == {"batch_running"}
    assert [entry.iteration for entry in orca if 2 in entry.new] == [2]
