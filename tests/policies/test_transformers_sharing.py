"""Block sharing of the transformers policy: beside its oracle, and rules written out by hand."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax import policies
from cbjax.core.invariants import check
from cbjax.core.limits import system
from cbjax.core.merging import findable
from cbjax.core.state import initial_state
from cbjax.parity.driver import run_on_host
from cbjax.parity.systems import format_of
from cbjax.parity.traces import compare as compare_trace
from cbjax.parity.traces import load
from cbjax.parity.workload import Request, Workload, output_token
from tests.drawn import drawn
from tests.policies.beside import LIMITS, SHARED, Case, array_log, mismatch, oracle_log
from tests.policies.oracles import transformers
from tests.policies.oracles.sglang_texts import related

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
WIDE = dict(
    max_batch_tokens=64, max_requests_per_batch=6, safety_margin=0.0, allow_block_sharing=True
)
OPENING = tuple(range(100, 108))  # two blocks of 4


def text(start, count):
    return tuple(range(start, start + count))


def workload(requests, aborts=()):
    """Requests as (arrival, text, outputs)."""
    return Workload(
        tuple(
            Request(id, arrival, len(ids), outputs, token_ids=ids)
            for id, (arrival, ids, outputs) in enumerate(requests)
        ),
        tuple(aborts),
    )


def serve(requests, num_blocks, swap_blocks=0, aborts=(), **knobs):
    """The array policy's log on blocks of 4, after checking that the oracle says the same."""
    served = workload(requests, aborts)
    case = Case("transformers", WIDE | knobs, 4, num_blocks, 48, served, swap_blocks)
    log = array_log(case)
    assert mismatch(log, oracle_log(case)) is None
    return log


def found(log):
    """Tokens that were found computed, by request and in order of admission."""
    return [pair for entry in log for pair in entry.cached if pair[1]]


@st.composite
def cases(draw):
    """A system, and requests that begin like others or go on where these ended."""
    case = draw(transformers.cases())
    return replace(
        case, knobs=case.knobs | dict(allow_block_sharing=True),
        workload=draw(related(case.workload, case.max_length)),
    )


def compare(examples) -> Counter:
    """Draw workloads, the same in every run, step both, and count what happened in them."""
    seen: Counter = Counter()

    @drawn(examples)
    @given(case=cases())
    def agree(case):
        log = array_log(case)
        difference = mismatch(log, oracle_log(case))
        assert difference is None, f"{difference} in {case}"
        seen["workloads"] += 1
        seen["ahead"] += case.knobs["use_async_batching"]
        seen["found"] += bool(found(log))
        seen["preempted"] += any(entry.preempted for entry in log)
        seated: set[int] = set()
        for entry in log:
            came = set(entry.new + entry.resumed)
            seen["seat without tokens"] += bool(came - {one for one, _ in entry.scheduled})
            seen["seat lost at once"] += bool(set(entry.preempted) - seated)
            seated = (seated | came) - set(entry.preempted)

    agree()
    return seen


@pytest.mark.parametrize(
    "examples", [200, pytest.param(1000, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_array_policy_decides_as_its_oracle(examples, report_line):
    seen = compare(examples)
    report_line(f"transformers with block sharing beside its oracle, 0 differences: {dict(seen)}")
    assert seen["workloads"] >= examples
    assert seen["found"] >= examples / 3 and seen["preempted"] >= examples / 4
    assert examples / 4 <= seen["ahead"] <= 3 * examples / 4
    # Each of the two ways in which a request may take a seat that it does not use.
    assert seen["seat without tokens"] and seen["seat lost at once"]


def test_what_was_computed_is_found_in_the_next_iteration():
    log = serve(
        [(0, OPENING + text(1, 3), 3), (0, OPENING + text(11, 3), 3), (1, OPENING + (21,), 3)], 20
    )
    # Not in the same one: both compute the opening.
    assert log[0].scheduled == ((0, 11), (1, 11)) and log[0].free_blocks == 20 - 6
    assert log[1].scheduled == ((0, 1), (1, 1), (2, 1)) and log[1].cached == ((2, 8),)


def test_of_equal_blocks_one_is_kept():
    log = serve([(0, (*OPENING, 1), 3), (0, (*OPENING, 2), 3)], 10)
    assert log[0].free_blocks == 10 - 6
    # The opening is there once when the next iteration is decided, though both compute it.
    assert log[1].free_blocks == 10 - 4


def test_where_the_schedule_runs_ahead_it_is_found_an_iteration_later():
    requests = [(arrival, OPENING + text(10 * arrival + 1, 3), 4) for arrival in range(3)]
    log = serve(requests, 20, use_async_batching=True)
    assert log[1].scheduled == ((0, 1), (1, 11)) and found(log) == [(2, 8)]


def test_a_chunk_counts_only_while_the_prompt_goes_on_where_the_schedule_runs_ahead():
    # Chunks of 8 and 4: when the results of the first are in, the last one is scheduled already,
    # and its one block is all that is registered.
    requests = [(0, text(1, 12), 9), (5, text(1, 14), 2)]
    assert found(serve(requests, 20, max_batch_tokens=8, use_async_batching=True)) == [(1, 4)]
    assert found(serve(requests, 20, max_batch_tokens=8)) == [(1, 12)]


def test_one_token_is_always_computed():
    """FAULTS C1: a prompt that is there to its last token computes its last block again."""
    log = serve([(0, OPENING, 2), (3, OPENING, 2)], 10)
    assert log[3].scheduled == ((1, 4),) and log[3].cached == ((1, 4),)


def test_what_the_last_step_fills_is_not_registered():
    assert found(serve([(0, OPENING, 1), (1, (*OPENING, 1), 1)], 10)) == []


def test_outputs_are_found_too():
    answer = tuple(output_token(0, place) for place in range(4))
    log = serve([(0, text(1, 4), 6), (6, (*text(1, 4), *answer, 7), 2)], 10)
    assert found(log) == [(1, 8)]


def test_memory_that_is_scarce_is_taken_from_what_nobody_holds():
    requests = [(0, (*OPENING, 1), 2), (3, text(50, 21), 2), (4, (*OPENING, 2), 2)]
    assert found(serve(requests, 10)) == [(2, 8)]
    # At half the pool: 10 - 2 - 6 blocks are free, and what was found is forgotten.
    log = serve(requests, 10, safety_margin=0.5)
    assert log[4].limited_by == "watermark" and found(log) == []


def test_findable_blocks_are_forgotten_when_nothing_else_is_free():
    # Request 1 needs 6 of 7 blocks, 2 of which are findable.
    requests = [(0, (*OPENING, 1), 2), (3, text(50, 21), 2), (6, (*OPENING, 2), 2)]
    log = serve(requests, 7)
    assert log[3].scheduled == ((1, 21),) and found(log) == []


def test_whoever_finds_a_prefix_takes_a_seat_and_may_lose_it_at_once():
    requests = [(0, (*OPENING, 1), 12), (0, text(50, 8), 12), (1, OPENING + text(21, 12), 3)]
    log = serve(requests, 7)
    # 7 blocks: 3 and 2 are held, and both others take the last ones; request 2 finds 2, lacks 3
    # and is the newest of those that starve.
    assert log[1].preempted == (2,) and log[1].new == () and log[1].queue == (2,)
    assert log[1].scheduled == ((0, 1), (1, 1)) and log[2].limited_by == "freeze"
    again = next(entry for entry in log if 2 in entry.resumed)
    assert again.cached == ((2, 8),) and again.scheduled == ((2, 12),)


def test_the_host_pool_takes_a_prefix_that_was_only_found():
    requests = [(0, (*OPENING, 1), 12), (0, text(50, 7), 12), (1, OPENING + text(21, 12), 3)]
    log = serve(requests, 6, swap_blocks=2)
    assert log[1].preempted == (2,) and log[1].new == ()
    again = next(entry for entry in log if 2 in entry.resumed)
    # Its 8 tokens come back though nobody remembers the opening any more.
    assert again.scheduled[0] == (2, 12) and again.cached[0] == (2, 0)


def test_a_victim_leaves_nothing_to_be_found_but_what_others_hold():
    requests = [(0, (*OPENING, 1), 9), (0, (*OPENING, 2), 9), (0, text(50, 8), 9)]
    log = serve(requests, 6)
    victim = next(entry for entry in log if entry.preempted)
    assert victim.preempted == (2,)
    # It computes all of its own text again, for that is gone.
    again = next(entry for entry in log if 2 in entry.resumed)
    assert dict(again.cached)[2] == 0


def test_sharing_changes_decisions():
    requests = [(0, (*OPENING, 1), 4), (2, (*OPENING, 2), 4)]
    shared, not_shared = (
        serve(requests, 8, allow_block_sharing=allowed) for allowed in (True, False)
    )
    assert shared[2].scheduled == ((0, 1), (1, 1))
    assert not_shared[2].scheduled == ((0, 1), (1, 9))


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("swap_blocks", [0, 3])
def test_invariants_hold_and_every_block_returns(lag, swap_blocks):
    """FAULTS C10: references never fall below 0, after victims, merged blocks and aborts."""
    requests = [
        (0, (*OPENING, 1), 9), (0, (*OPENING, 2), 9), (1, (*OPENING, 3, 4), 12),
        (1, text(50, 3), 9), (2, OPENING + text(21, 8), 9), (3, text(60, 12), 9),
        (8, text(60, 14), 3),
    ]
    numbers = system(SHARED, block_size=4, num_blocks=6, max_length=48, swap_blocks=swap_blocks)
    states, last = [], [None]

    def look(state, plan):
        if plan is not None:
            check(state, SHARED, plan)
        else:
            last[0] = check(state, SHARED, None, last[0])
            states.append(state)

    policy = policies.transformers(**WIDE, use_async_batching=lag)
    log = run_on_host(
        policy, workload(requests, [(4, 1), (9, 5)]), SHARED, numbers, check=look
    )
    assert found(log) and any(entry.preempted for entry in log)
    blocks = states[-1].blocks
    assert (int(blocks.free), int(states[-1].swap_free)) == (6, swap_blocks)
    assert 0 < int(findable(blocks)) <= 6 and not blocks.refs.any()
    ended = [request for entry in log for request in entry.finished]
    assert sorted(ended + [1, 5]) == list(range(7))


def test_without_sharing_no_pool_is_kept():
    numbers = system(LIMITS, block_size=4, num_blocks=6, max_length=48)
    plain = policies.transformers(**WIDE | dict(allow_block_sharing=False))
    assert initial_state(plain, LIMITS, numbers).blocks.cache is None
    with pytest.raises(ValueError, match="transformers shares prefixes, which needs token ids"):
        initial_state(policies.transformers(**WIDE), LIMITS, numbers)


@pytest.mark.slow
def test_recordings_in_which_the_original_raised_are_equal_until_then():
    marked = 0
    for path in GOLDEN.glob("transformers*.jsonl.gz"):
        for recorded in load(path):
            if recorded.get("error"):
                form = format_of(recorded)
                difference = compare_trace(form.read(recorded), form)
                assert difference.iteration == len(recorded["iterations"]) - 1
                marked += 1
    assert marked >= 4
