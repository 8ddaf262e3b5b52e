"""Policies composed of four functions: beside their oracle, and beside vllm that needs no parts."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given

from cbjax import policies
from cbjax.core import parts, victims
from cbjax.core.compose import compose
from cbjax.core.limits import system
from cbjax.core.state import initial_state
from cbjax.parity.driver import compilations
from cbjax.parity.workload import Request, Workload
from tests.drawn import drawn
from tests.policies.beside import (
    LIMITS,
    ORACLES,
    Case,
    array_log,
    mismatch,
    oracle_log,
    vllm_cases,
)
from tests.policies.oracles.composed import Composed, cases

ORACLES["composed"] = Composed


PLAIN = dict(
    order="arrival", admit="whole_prompt_fits", chunk="fcfs_chunks", victim="last_admitted",
    max_num_batched_tokens=48, max_num_seqs=4, watermark=0.0,
)


@pytest.mark.parametrize("examples", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_composed_policy_decides_as_its_oracle(examples, report_line):
    seen: Counter = Counter()

    @drawn(examples)
    @given(case=cases())
    def agree(case):
        log = array_log(case)
        difference = mismatch(log, oracle_log(case))
        assert difference is None, f"{difference} in {case}"
        assert not any(entry.backlog for entry in log)
        seen["workloads"] += 1
        seen["iterations"] += len(log)
        seen[case.knobs["victim"]] += any(entry.preempted for entry in log)

    agree()
    report_line(
        f"composed beside its oracle: {seen['workloads']} workloads, {seen['iterations']} "
        "iterations, 0 differences"
    )
    victims = ("fewest_outputs", "lowest_priority", "longest_prompt", "most_blocks")
    assert sum(seen[victim] for victim in victims) >= examples / 10, seen
    if examples >= 1000:  # fewer may miss a rule altogether
        assert min(seen[victim] for victim in victims) >= 20, seen
    assert not seen["none"]


def test_the_parts_of_vllm_decide_as_vllm(report_line):
    """No second scheduler hides in the frame: equal to the oracle of the system itself."""
    seen: Counter = Counter()

    @drawn(150)
    @given(case=vllm_cases())
    def agree(case):
        knobs = case.knobs | dict(long_prefill_token_threshold=0, watermark=0.0, policy="fcfs")
        case = replace(case, knobs=knobs)
        whole = knobs["scheduler_reserve_full_isl"]
        log = array_log(
            case,
            compose(
                order=parts.arrival,
                admit=parts.whole_prompt_fits() if whole else parts.first_chunk_fits,
                chunk=parts.fcfs_chunks if knobs["enable_chunked_prefill"] else parts.whole_prompts,
                victim=parts.last_admitted,
                max_num_batched_tokens=knobs["max_num_batched_tokens"],
                max_num_seqs=knobs["max_num_seqs"],
            ),
        )
        difference = mismatch(log, oracle_log(case))
        assert difference is None, f"{difference} in {case}"
        seen["iterations"] += len(log)
        seen["preempted"] += any(entry.preempted for entry in log)

    agree()
    report_line(f"composed beside vllm: {seen['iterations']} iterations, 0 differences")
    assert seen["preempted"] >= 40


# The whole of a new policy, as the README shows it.


def shortest_prompt(view):
    return view.rows.prompt


def shortest_prompt_first(max_num_batched_tokens: int = 2048, max_num_seqs: int = 256):
    """Shortest prompt first, otherwise as vLLM."""
    return compose(
        order=shortest_prompt, admit=parts.whole_prompt_fits(watermark=0.01),
        chunk=parts.fcfs_chunks, victim=parts.last_admitted, name="shortest_prompt_first",
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
    )


def test_a_new_policy_in_a_few_lines():
    workload = Workload(tuple(Request(id, 0, prompt, 3) for id, prompt in enumerate((9, 2, 5))))
    case = Case("composed", PLAIN | dict(max_num_seqs=1), 4, 16, 48, workload)
    log = array_log(case, shortest_prompt_first(max_num_batched_tokens=48, max_num_seqs=1))
    assert [entry.new for entry in log if entry.new] == [(1,), (2,), (0,)]
    assert [entry.new for entry in array_log(case) if entry.new] == [(0,), (1,), (2,)]


CROWD = Workload(
    tuple(Request(id, id // 4, 14 - id, 10 + id % 3, priority=id * 7 % 4) for id in range(8))
)
LONG_AND_SHORT = Workload((Request(0, 0, 22, 2), Request(1, 0, 2, 16)))


@pytest.mark.parametrize(
    ("changed", "num_blocks"),
    [
        (dict(order="shortest_prompt_first"), 13),
        (dict(order="priority"), 13),
        (dict(order="shortest_answer_first"), 13),
        (dict(order="longest_waiting"), 13),
        (dict(admit="reserves_output"), 13),
        (dict(chunk="whole_prompts"), 40),
        (dict(chunk="capped", threshold=3), 40),
        (dict(victim="lowest_priority"), 13),
        (dict(victim="longest_prompt"), 13),
        (dict(victim="most_blocks"), 13),
    ],
    ids=str,
)
def test_part_changes_a_decision(changed, num_blocks):
    # By the oracle alone: that the arrays decide the same is shown above.
    assert by_oracle(PLAIN, num_blocks) != by_oracle(PLAIN | changed, num_blocks)


def test_first_chunk_lets_in_what_the_whole_prompt_would_not():
    small = PLAIN | dict(max_num_batched_tokens=24)
    assert by_oracle(small, 12) != by_oracle(small | dict(admit="first_chunk_fits"), 12)


def test_fewest_outputs_spares_what_came_last():
    """The long prompt is still being computed when the short request behind it needs a block."""
    slow = PLAIN | dict(chunk="capped", threshold=3, admit="first_chunk_fits")
    last, fewest = (
        by_oracle(slow | dict(victim=victim), 7, LONG_AND_SHORT)
        for victim in ("last_admitted", "fewest_outputs")
    )
    assert [entry["preempted"] for entry in last if entry["preempted"]][0] == (1,)
    assert [entry["preempted"] for entry in fewest if entry["preempted"]][0] == (0,)


def by_oracle(knobs, num_blocks, workload=CROWD):
    return oracle_log(Case("composed", knobs, 4, num_blocks, 48, workload))


@pytest.mark.parametrize(
    "changed",
    [dict(max_num_batched_tokens=9), dict(max_num_seqs=2), dict(watermark=0.4), dict(threshold=3)],
    ids=str,
)
def test_number_changes_a_decision(changed):
    def log_of(knobs):
        case = Case("composed", knobs, 4, 13, 48, CROWD)
        log = array_log(case)
        assert mismatch(log, oracle_log(case)) is None
        return [entry.scheduled for entry in log]

    plain = PLAIN | dict(chunk="capped", threshold=16)
    assert log_of(plain) != log_of(plain | changed)


def test_equal_parts_share_one_program():
    case = Case("composed", PLAIN, 4, 13, 48, CROWD)
    array_log(case)
    before = compilations()
    array_log(replace(case, knobs=PLAIN | dict(watermark=0.3, max_num_seqs=3)))
    assert compilations() == before


def late_first(view, penalty):
    return -penalty * view.rows.request


def late_last(view, want, budget, penalty):
    urgency = view.in_run_order(penalty * view.rows.request)
    return victims.serve_in_turn(view, want, budget, urgency)


def test_two_parts_share_a_number():
    def of(first, second):
        return compose(
            order=partial(late_first, penalty=first), admit=parts.first_chunk_fits,
            chunk=parts.fcfs_chunks, victim=partial(late_last, penalty=second),
            max_num_batched_tokens=48, max_num_seqs=2,
        )

    assert of(1, 1).knobs["penalty"] == 1
    case = Case("composed", PLAIN, 4, 10, 48, CROWD)
    one, other = array_log(case, of(1, 1)), array_log(case, of(-1, -1))
    assert one[0].new == (3, 2) and other[0].new == (0, 1)  # the order reads it
    # The victim reads it: the later one of two goes, or the earlier one.
    assert [entry.preempted for entry in one if entry.preempted][0] == (3,)
    assert [entry.preempted for entry in other if entry.preempted][0] == (0,)
    with pytest.raises(ValueError, match="penalty = 2 in one part and 1 in another"):
        of(1, 2)
    with pytest.raises(ValueError, match="max_num_seqs = 7"):
        compose(
            order=parts.arrival, admit=parts.first_chunk_fits, chunk=parts.fcfs_chunks,
            victim=partial(late_last, max_num_seqs=7),
        )


def test_impossible_compositions_are_named():
    good = dict(
        order=parts.arrival, admit=parts.whole_prompt_fits(), chunk=parts.fcfs_chunks,
        victim=parts.last_admitted,
    )
    for changed, words in (
        (dict(max_num_seqs=0), ["max_num_seqs = 0"]),
        (dict(max_num_batched_tokens=4), ["max_num_batched_tokens = 4", "max_num_seqs = 256"]),
        (dict(victim=parts.none), ["victim = none", "reserves_output"]),
    ):
        with pytest.raises(ValueError) as error:
            compose(**good | changed)
        for word in words:
            assert word in str(error.value)
    with pytest.raises(ValueError, match="watermark = 1.5"):
        parts.whole_prompt_fits(1.5)
    with pytest.raises(ValueError, match="threshold = 0"):
        parts.capped(0)
    whole = compose(
        **good | dict(chunk=parts.whole_prompts), max_num_batched_tokens=40, max_num_seqs=4
    )
    with pytest.raises(ValueError, match="max_num_batched_tokens = 40 is below max_length = 48"):
        initial_state(whole, LIMITS, system(LIMITS, block_size=4, num_blocks=12, max_length=48))


def test_unknown_parts_are_named():
    for knob in ("order", "admit", "chunk", "victim"):
        with pytest.raises(ValueError, match=f"{knob} = 'coin': choose one of"):
            policies.composed(**{knob: "coin"})
