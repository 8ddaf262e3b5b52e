"""SGLang's scheduler: cases to check by hand, its knobs, its faults behind their options."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.state import initial_state
from cbjax.parity.driver import run
from cbjax.parity.workload import Request, Workload
from cbjax.policies import _sglang_ratio as ratios
from tests.drawn import drawn
from tests.policies.beside import LIMITS, Case, array_log, mismatch, oracle_log
from tests.policies.test_oracles import compare, describe

# One loop, so that most tests share one program; the other has tests of its own.
PLAIN = dict(
    max_running_requests=4, chunked_prefill_size=16, disable_overlap_schedule=True,
    schedule_conservativeness=0.0,
)


def log_of(workload, num_blocks=64, block_size=1, **knobs):
    """The array policy's log, after checking that the oracle says the same."""
    one = Case("sglang", PLAIN | knobs, block_size, num_blocks, 48, workload)
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return log


def requests(*numbers):
    """(arrival, prompt, max_tokens[, stop_after[, priority]]) of each request."""
    return Workload(tuple(Request(id, *one) for id, one in enumerate(numbers)))


def grants(log):
    return [dict(entry.scheduled) for entry in log]


@pytest.mark.parametrize("examples", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_array_policy_decides_as_its_oracle(examples, report_line):
    seen = compare("sglang", examples)
    report_line(describe("sglang", seen))
    assert seen["preempted"] >= examples / 12 and seen["resumed"] >= examples / 20


def test_prompts_come_first_and_one_is_split():
    log = log_of(requests((0, 6, 3), (0, 9, 3)), chunked_prefill_size=10)
    assert grants(log) == [{0: 6, 1: 4}, {1: 5}, {0: 1, 1: 1}, {0: 1, 1: 1}]


def test_retraction_takes_the_fewest_outputs_then_the_longest_prompt():
    log = log_of(requests((0, 8, 6), (0, 8, 6), (0, 4, 6)), num_blocks=30)
    assert grants(log)[:5] == [{0: 8, 1: 8}, {2: 4}, *[{0: 1, 1: 1, 2: 1}] * 3]
    retracts, again = log[5], next(entry for entry in log if entry.resumed)
    # All three have four outputs and one token of memory is left; the later of two equals goes.
    assert log[4].free_blocks == 1 and retracts.preempted == (1,)
    # The others decode in the same iteration, in the order in which they were sorted.
    assert retracts.scheduled == ((2, 1), (0, 1)) and retracts.queue == (1,)
    # Prompt and outputs are computed again.
    assert dict(again.scheduled)[1] == 8 + 4
    assert log[-1].finished == (1,)


def test_steady_prompts_starve_a_decode_unless_chunks_are_mixed(report_line):
    """FAULTS A4: prefill first; with mixed chunks the decode advances in every iteration."""
    steady = requests((0, 4, 12), *[(1 + turn, 8, 1) for turn in range(15)])
    gaps = {}
    for mixed in (False, True):
        log = log_of(steady, enable_mixed_chunk=mixed)
        decodes = [entry.iteration for entry in log if 0 in dict(entry.scheduled)]
        gaps[mixed] = max(
            after - before for before, after in zip(decodes, decodes[1:], strict=False)
        )
    report_line(f"sglang: longest gap of a decode under steady prompts {gaps[False]}, mixed 1")
    assert gaps == {False: 16, True: 1}


def test_long_chunked_prefill_does_not_stall_a_decode_when_mixed():
    """FAULTS A5: 8 chunks; the decode advances in each of them."""
    log = log_of(
        requests((0, 2, 20), (1, 32, 2)), chunked_prefill_size=5, enable_mixed_chunk=True
    )
    prefill = [entry for entry in log if dict(entry.scheduled).get(1, 0) > 1]
    assert len(prefill) == 8 and all(dict(entry.scheduled)[0] == 1 for entry in prefill)


def test_one_request_at_a_time_is_half_computed():
    """FAULTS A9: chunks of 2, prompts of 5: the second waits for the first, none fails."""
    log = log_of(requests((0, 5, 2), (0, 5, 2)), chunked_prefill_size=2)
    assert grants(log)[:6] == [{0: 2}, {0: 2}, {0: 1, 1: 1}, {1: 2}, {1: 2}, {0: 1, 1: 1}]


def test_memory_for_a_more_urgent_request_is_taken_in_the_same_pass():
    """FAULTS A8: the pool is full, a seat is free; the less urgent request makes room at once."""
    knobs = dict(enable_priority_scheduling=True, priority_scheduling_preemption_threshold=5)
    work = requests((0, 12, 8, 0, 0), (2, 10, 4, 0, 9))
    log = log_of(work, num_blocks=24, **knobs)
    assert log[2].preempted == (0,) and log[2].new == (1,)
    calm = log_of(work, num_blocks=24, **knobs | dict(priority_scheduling_preemption_threshold=9))
    assert not calm[2].preempted and not calm[2].new


def test_a_request_that_fits_the_pool_but_not_the_estimate_runs_alone():
    """FAULTS A1: the original accepts it and then waits for ever."""
    # 12 + 9 - 1 = 20 tokens of KV fit exactly; the estimate wants more than 21.
    work = requests((0, 12, 9), (0, 4, 2))
    log = log_of(work, num_blocks=20)
    assert log[0].new == (0,) and {id for entry in log for id in entry.finished} == {0, 1}
    assert log_of(requests((0, 20, 9)), num_blocks=20)[0].refused == ((0, "never_fits"),)
    faulty = policies.sglang(**PLAIN, check_memory=False)
    numbers = system(LIMITS, block_size=1, num_blocks=20, max_length=48)
    with pytest.raises(RuntimeError, match="not done"):
        run(faulty, work, LIMITS, numbers, iterations=100)


def test_finished_requests_keep_their_place_only_by_option():
    """A batch that was full leaves an idle iteration behind it in the original."""
    work = requests((0, 4, 3), (0, 4, 3))
    sound = grants(log_of(work, max_running_requests=1))
    faulty = grants(log_of(work, max_running_requests=1, keep_finished=True))
    once = [{0: 4}, {0: 1}, {0: 1}]
    assert sound == [*once, *({1: step[0]} for step in once)]
    assert faulty == [*once, {}, *({1: step[0]} for step in once)]


def test_mixed_decodes_are_admitted_without_memory_only_by_option():
    # Pages of 4; the running request needs a new page in the iteration in which 1 arrives.
    work = requests((0, 7, 12), (2, 5, 4))
    mixed = dict(block_size=4, num_blocks=5, enable_mixed_chunk=True)
    assert log_of(work, **mixed)[2].new == ()
    assert log_of(work, **mixed, check_memory=False)[2].new == (1,)


def test_the_last_running_request_goes_on_and_the_half_computed_one_gives_way():
    log = log_of(
        requests((0, 4, 14), (1, 10, 1)), num_blocks=17, chunked_prefill_size=2,
        enable_mixed_chunk=True,
    )
    victims = [entry for entry in log if entry.preempted]
    assert [entry.preempted for entry in victims] == [(1,)]
    assert dict(victims[0].scheduled) == {0: 1}
    assert {id for entry in log for id in entry.finished} == {0, 1}


def test_no_page_for_a_token_that_is_never_attended_to():
    """FAULTS C15: the pool is exactly full when the request ends."""
    log = log_of(requests((0, 5, 4)), num_blocks=8)
    assert log[-1].free_blocks == 0 and log[-1].finished == (0,)


def test_overlap_computes_one_token_for_nothing_and_drops_one_at_a_retraction():
    work = requests((0, 8, 6), (0, 8, 6), (0, 4, 6))
    log = log_of(work, num_blocks=30, disable_overlap_schedule=False)
    tokens = {
        id: sum(dict(entry.scheduled).get(id, 0) for entry in log) for id in range(3)
    }
    retracts, again = (
        next(entry for entry in log if getattr(entry, name)) for name in ("preempted", "resumed")
    )
    (victim,) = retracts.preempted
    # Four outputs were computed when it was retracted, three of them were seen.
    assert dict(again.scheduled)[victim] == 8 + 3
    last = max(entry.iteration for entry in log if 0 in dict(entry.scheduled))
    assert next(entry.iteration for entry in log if 0 in entry.finished) == last - 1
    assert tokens[0] == 8 + 6


def test_an_end_is_inserted_before_the_first_that_is_no_sooner():
    """With known ends the list is out of order once one has more left than all others."""
    work = requests((0, 1, 6), (0, 1, 8), (0, 1, 7))
    log = log_of(work, num_blocks=28, ignore_eos=True, chunked_prefill_size=-1)
    # By tokens left: 8, 6 and then 7, 8, 6. Three times 7 fit what two prompts leave of 28 pages.
    assert log[0].new == (0, 1, 2)


BURST = requests(*[(0, 5 + id, 6) for id in range(8)])
LATER = requests(*[(id, 4 + id % 3, 3 + 2 * id, 0, id % 3) for id in range(9)])


@pytest.mark.parametrize(
    ("base", "changed", "work", "num_blocks"),
    [
        ({}, dict(max_running_requests=2), BURST, 64),
        ({}, dict(chunked_prefill_size=4), BURST, 64),
        ({}, dict(chunked_prefill_size=-1), BURST, 64),
        ({}, dict(max_prefill_tokens=8), BURST, 64),
        ({}, dict(schedule_policy="lof"), LATER, 24),
        ({}, dict(schedule_policy="random"), BURST, 64),
        ({}, dict(schedule_conservativeness=1.0), BURST, 32),
        ({}, dict(enable_mixed_chunk=True), BURST, 64),
        ({}, dict(disable_overlap_schedule=False), BURST, 64),
        ({}, dict(ignore_eos=True), BURST, 32),
        ({}, dict(enable_priority_scheduling=True), LATER, 24),
        (
            dict(enable_priority_scheduling=True),
            dict(priority_scheduling_preemption_threshold=0), LATER, 24,
        ),
        (
            dict(enable_priority_scheduling=True),
            dict(schedule_low_priority_values_first=True), LATER, 24,
        ),
        (
            dict(schedule_conservativeness=1.0), dict(init_new_token_ratio=0.1), LATER, 32,
        ),
        (
            dict(schedule_conservativeness=1.0, new_token_ratio_decay_steps=2),
            dict(min_new_token_ratio_factor=1.0), LATER, 32,
        ),
        (
            dict(schedule_conservativeness=1.0), dict(new_token_ratio_decay_steps=1), LATER, 32,
        ),
        ({}, dict(retract_decode_steps=0), BURST, 28),
        ({}, dict(keep_finished=True), BURST, 64),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_knob_changes_a_decision(base, changed, work, num_blocks):
    before, after = (log_of(work, num_blocks, **knobs) for knobs in (base, base | changed))
    assert grants(before) != grants(after)


def test_orders_of_a_radix_cache_are_fcfs_without_one():
    assert all(
        grants(log_of(LATER, 24, schedule_policy=order)) == grants(log_of(LATER, 24))
        for order in ("lpm", "dfs-weight")
    )


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        (dict(max_running_requests=0), ["max_running_requests = 0"]),
        (dict(chunked_prefill_size=0), ["chunked_prefill_size = 0"]),
        (dict(schedule_policy="priority"), ["schedule_policy = 'priority'", "lof"]),
        (dict(schedule_conservativeness=-0.1), ["schedule_conservativeness = -0.1"]),
        (dict(min_new_token_ratio_factor=2), ["min_new_token_ratio_factor = 2"]),
        (
            dict(enable_priority_scheduling=True, schedule_policy="random"),
            ["enable_priority_scheduling", "schedule_policy = 'random'"],
        ),
        (dict(enable_priority_scheduling=True, ignore_eos=True), ["ignore_eos = True"]),
    ],
)
def test_impossible_values_are_named(knobs, names):
    with pytest.raises(ValueError) as error:
        policies.sglang(**knobs)
    for name in names:
        assert name in str(error.value)


def test_start_up_rules_name_the_limit():
    numbers = system(LIMITS, block_size=8, num_blocks=12, max_length=48)
    for knobs, words in (
        (dict(max_running_requests=4, chunked_prefill_size=12), ["= 12", "block_size = 8"]),
        (dict(max_running_requests=7, chunked_prefill_size=16), ["max_running_requests = 7"]),
    ):
        with pytest.raises(ValueError) as error:
            initial_state(policies.sglang(**knobs), LIMITS, numbers)
        for word in words:
            assert word in str(error.value)


@jax.jit
def _share(ratio, part, whole, tokens, wanted):
    ratio = ratios.share(ratio, part, whole)
    return (
        ratio.now, ratios.at_least(ratio, tokens, wanted), ratios.rounded_up(ratio, tokens),
        ratios.decay(ratio, jnp.int32(600)).now,
    )


@drawn(300)
@given(
    whole=st.integers(1, 2000), part=st.integers(0, 3000), tokens=st.integers(0, 1 << 20),
    off=st.integers(-2, 2),
)
def test_ratio_is_exact_in_whole_numbers(whole, part, tokens, off):
    """Beside fractions: what lies within the rounding of a whole number counts as it."""
    exact = min(Fraction(part, whole), Fraction(1))
    product = exact * tokens
    start = ratios.start(0.7, 0.14)
    wanted = int(product) + off
    now, at_least, up, decayed = map(int, _share(start, part, whole, tokens, wanted))
    assert now == int(exact * ratios.PARTS)
    step = (Fraction(7, 10) - Fraction(98, 1000)) / 600
    assert abs(Fraction(decayed, ratios.PARTS) - max(exact - step, Fraction(98, 1000))) < 4e-9
    if abs(product - round(product)) > Fraction(1, 100):
        assert at_least == (product >= wanted) and up == -(-product // 1)
    elif product == round(product):
        assert at_least == (product >= wanted) and up == product
