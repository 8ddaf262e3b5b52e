"""vLLM V0: traces by hand, every knob, swapping, and the order of the chunked mode."""

import numpy as np
import pytest

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.state import initial_state
from cbjax.parity.driver import run_on_host
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import LIMITS, Case, array_log, mismatch, oracle_log

TRACE_A = Workload((Request(0, 0, 6, 3), Request(1, 0, 9, 3)))
BURST = Workload(tuple(Request(id, 0, 5 + id, 6) for id in range(8)))
WHOLE = dict(max_num_batched_tokens=48, max_num_seqs=4)
CHUNKED = WHOLE | dict(enable_chunked_prefill=True)
SWAP = dict(preemption_mode="swap")
GROWING = Workload((Request(0, 0, 6, 20), Request(1, 0, 6, 20)))


def log_of(workload, knobs, num_blocks=10, block_size=4, max_length=48, swap_blocks=0):
    """The policy's log, after checking that the oracle says the same."""
    one = Case(
        "vllm_v0", knobs, block_size, num_blocks, max_length, workload, swap_blocks=swap_blocks
    )
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return log


def tokens(log):
    return [dict(entry.scheduled) for entry in log]


def test_trace_a_prompts_one_by_one_then_decodes():
    knobs = dict(max_num_batched_tokens=10, max_num_seqs=4)
    log = log_of(TRACE_A, knobs, 64, 1, 10)
    # The second request is cut by the longest sequence, 10, after its first output.
    assert tokens(log)[:2] == [{0: 6}, {1: 9}]
    knobs = dict(max_num_batched_tokens=14, max_num_seqs=4)
    log = log_of(TRACE_A, knobs, 64, 1, 14)
    assert tokens(log) == [{0: 6}, {1: 9}, {0: 1, 1: 1}, {0: 1, 1: 1}]


def test_trace_a_chunked_is_that_of_v1():
    knobs = CHUNKED | dict(max_num_batched_tokens=10)
    log = log_of(TRACE_A, knobs, 64, 1)
    assert tokens(log) == [{0: 6, 1: 4}, {0: 1, 1: 5}, {0: 1, 1: 1}, {1: 1}]


@pytest.mark.parametrize(
    ("base", "changed"),
    [
        (CHUNKED, dict(max_num_batched_tokens=9)),
        (WHOLE, dict(max_num_batched_tokens=56)),
        (WHOLE, dict(max_num_seqs=2)),
        (WHOLE, dict(watermark=0.4)),
        (WHOLE, dict(enable_chunked_prefill=True)),
        (WHOLE, SWAP),
        (CHUNKED, SWAP),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_knob_changes_a_decision(base, changed):
    workload = Workload(tuple(Request(id, 0, 15, 9) for id in range(6)))
    before, after = (
        log_of(workload, knobs, 17, swap_blocks=20) for knobs in (base, base | changed)
    )
    assert tokens(before) != tokens(after)


def test_delay_holds_prompts_back_while_others_run():
    """The prompt iteration lasted 1 s: the second prompt waits until it is older than 4 s."""
    workload = Workload((Request(0, 0, 5, 9), Request(1, 1, 5, 2)))
    at_once = log_of(workload, WHOLE)
    late = log_of(workload, WHOLE | dict(scheduler_delay_factor=4.0))
    assert [entry.iteration for entry in at_once if 1 in entry.new] == [1]
    assert [entry.iteration for entry in late if 1 in entry.new] == [6]
    assert late[2].limited_by == "wait_timer"


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        (dict(max_num_seqs=0), ["max_num_seqs = 0"]),
        (dict(max_num_batched_tokens=4, max_num_seqs=8), ["max_num_batched_tokens = 4"]),
        (dict(preemption_mode="drop"), ["preemption_mode = 'drop'", "swap"]),
        (dict(scheduler_delay_factor=-1.0), ["scheduler_delay_factor = -1.0"]),
        (dict(watermark=1.0), ["watermark = 1.0"]),
    ],
)
def test_impossible_values_are_named(knobs, names):
    with pytest.raises(ValueError) as error:
        policies.vllm_v0(**knobs)
    for name in names:
        assert name in str(error.value)


def test_whole_prompts_must_fit_the_budget():
    numbers = system(LIMITS, block_size=4, num_blocks=12, max_length=48)
    with pytest.raises(ValueError, match="max_num_batched_tokens = 40 is below max_length = 48"):
        initial_state(
            policies.vllm_v0(max_num_batched_tokens=40, max_num_seqs=4), LIMITS, numbers
        )
    initial_state(policies.vllm_v0(**CHUNKED | dict(max_num_batched_tokens=40)), LIMITS, numbers)


def test_steady_prompts_starve_decodes():
    """FAULTS A4: prompts first is the rule of the default mode; chunks have no gap."""
    workload = Workload((Request(0, 0, 2, 6), *(Request(id, id, 8, 1) for id in range(1, 12))))
    assert not any(0 in step for step in tokens(log_of(workload, WHOLE, 20))[1:12])
    assert all(0 in step for step in tokens(log_of(workload, CHUNKED, 20))[:6])


def test_heads_that_never_fit_are_refused():
    """FAULTS A1: at the door, or by the policy where only the watermark would be in the way."""
    workload = Workload((Request(0, 0, 20, 3), Request(1, 0, 15, 3), Request(2, 0, 4, 3)))
    for knobs in (WHOLE, CHUNKED):
        log = log_of(workload, knobs | dict(watermark=0.3), 4)
        assert log[0].refused == ((0, "never_fits"), (1, "never_fits"))
        assert tokens(log) == [{2: 4}, {2: 1}, {2: 1}]


@pytest.mark.parametrize("mode", [WHOLE, CHUNKED], ids=["whole", "chunked"])
def test_recompute_keeps_outputs(mode):
    """FAULTS B1, B2: prompt and outputs are computed again, no output is made twice."""
    log = log_of(GROWING, mode, 10)
    assert {one for entry in log for one in entry.preempted} == {1}
    sampled = [step[1] for step in tokens(log) if 1 in step]
    assert len(sampled) == 20 and sum(count > 1 for count in sampled) >= 2
    assert log[-1].finished == (1,)


@pytest.mark.parametrize("mode", [WHOLE, CHUNKED], ids=["whole", "chunked"])
def test_swap_keeps_what_is_computed(mode):
    """The victim comes back with one token to compute; nothing is computed twice."""
    log = log_of(GROWING, mode | SWAP, 10, swap_blocks=10)
    assert {one for entry in log for one in entry.preempted} == {1}
    assert sum(sum(step.values()) for step in tokens(log)) == 2 * (6 + 19)
    for entry in log:
        assert not entry.resumed or dict(entry.scheduled)[1] == 1


def test_swapping_out_and_in_returns_every_block():
    """The pools' counts: what leaves the device lies in the host pool, and comes back."""
    seen = []

    def look(state, plan):
        rows = state.rows
        held, swapped = int(np.sum(rows.held)), int(np.sum(rows.swapped))
        assert int(state.blocks.free) + held == 10
        assert int(state.swap_free) + swapped == 8
        assert not np.any((np.asarray(rows.held) > 0) & (np.asarray(rows.swapped) > 0))
        if plan is not None:
            seen.append((bool(np.any(plan.swapped_out)), bool(np.any(plan.swapped_in)), swapped))

    numbers = system(LIMITS, block_size=4, num_blocks=10, max_length=48, swap_blocks=8)
    policy = policies.vllm_v0(**WHOLE | SWAP)
    run_on_host(policy, GROWING, LIMITS, numbers, check=look)
    out = next(index for index, (leaves, _, _) in enumerate(seen) if leaves)
    back = next(index for index, (_, comes, _) in enumerate(seen) if comes)
    # 14 or more tokens lay in four blocks or more.
    assert out < back and seen[out][2] >= 4 and seen[back][2] == 0


def test_without_room_in_the_host_pool_the_victim_is_computed_again():
    """The original dies here."""
    assert tokens(log_of(GROWING, WHOLE | SWAP, 10, swap_blocks=2)) == tokens(
        log_of(GROWING, WHOLE, 10)
    )


def test_nobody_is_admitted_before_the_swapped_are_back():
    workload = Workload((*GROWING.requests, Request(2, 3, 4, 2)))
    log = log_of(workload, WHOLE | SWAP | dict(max_num_seqs=2), 10, swap_blocks=10)
    out = next(entry.iteration for entry in log if entry.preempted)
    back = next(entry.iteration for entry in log if entry.resumed)
    assert all(2 not in entry.new for entry in log[out : back + 1])
    assert any(entry.limited_by == "freeze" or entry.queue for entry in log[out + 1 : back])


def test_chunked_mode_puts_decodes_before_prompts():
    """A request not reached stands in front in the next iteration, decodes before prompts."""
    workload = Workload((Request(0, 0, 20, 4), Request(1, 0, 2, 4)))
    knobs = dict(max_num_batched_tokens=12, max_num_seqs=2, enable_chunked_prefill=True)
    log = log_of(workload, knobs, 20)
    assert [entry.scheduled for entry in log[:3]] == [
        ((0, 12),), ((0, 8), (1, 2)), ((0, 1), (1, 1)),
    ]
