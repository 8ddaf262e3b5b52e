"""Triton's dynamic batcher: scenarios checked by hand, its knobs, its invariants, seeded faults."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from cbjax import policies
from cbjax.parity.driver import run_watched
from cbjax.parity.workload import Request, Workload
from tests.drawn import drawn
from tests.policies.beside import CASES, LIMITS, Case, array_log, mismatch, oracle_log
from tests.policies.test_mutants import noticed, with_knob
from tests.policies.test_oracles import compare, describe

SECOND = 1_000_000
ONE = (1, 1)  # prompt and output of a request that ends in the iteration that starts it


def case(requests, num_blocks=64, **knobs):
    """Requests as (arrival, prompt, output, priority, deadline); no padding unless asked for."""
    made = []
    for id, (arrival, prompt, output, *more) in enumerate(requests):
        more = dict(zip(("priority", "deadline"), more, strict=False))
        made.append(Request(id, arrival, prompt, output, **more))
    knobs = dict(max_batch_size=4, allow_ragged_batch=True) | knobs
    return Case("triton", knobs, 1, num_blocks, 48, Workload(tuple(made)))


def both(requests, **more):
    """The array policy's log, after checking that the oracle says the same."""
    one = case(requests, **more)
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return log


def batches(log):
    """What was sent, and when."""
    return {entry.iteration: entry.new for entry in log if entry.new}


def refused(log):
    return {id: (word, entry.iteration) for entry in log for id, word in entry.refused}


def test_it_decides_as_its_oracle(report_line):
    seen = compare("triton", 120)
    report_line(describe("triton", seen))
    assert not seen["preempted"]
    for what in ("refused", "aborted", "stopped", "extra_tokens"):
        assert seen[what] >= seen["workloads"] / 20, what


@pytest.mark.slow
def test_it_decides_as_its_oracle_on_many_more(report_line):
    report_line(describe("triton", compare("triton", 1000)))


def test_without_delay_whatever_waits_goes_together():
    log = both([(0, 1, 3), (1, *ONE), (1, *ONE), (2, *ONE)])
    assert batches(log) == {0: (0,), 3: (1, 2, 3)}
    assert {entry.limited_by for entry in log[1:3]} == {"batch_running"}


def test_a_batch_is_never_joined_and_never_larger_than_allowed():
    log = both([(0, *ONE)] * 6)
    assert batches(log) == {0: (0, 1, 2, 3), 1: (4, 5)}
    assert log[0].limited_by == "seats"


def test_the_largest_preferred_size_that_is_reached_is_sent_at_once():
    """Two of three are sent although four would be preferred to two."""
    preferred = dict(preferred_batch_size=(2, 4), max_queue_delay_microseconds=3 * SECOND)
    log = both([(0, *ONE)] * 3 + [(9, *ONE)], **preferred)
    # The third, alone, waits for its delay, and then goes as it is.
    assert batches(log) == {0: (0, 1), 3: (2,), 12: (3,)}
    assert log[0].limited_by == "batch_running"
    assert [entry.limited_by for entry in log[1:3]] == ["wait_timer"] * 2


def test_a_late_batch_ignores_preferred_sizes():
    """What waited behind a running batch longer than the delay goes as a whole."""
    preferred = dict(preferred_batch_size=(2,), max_queue_delay_microseconds=2 * SECOND)
    requests = [(0, 1, 5), (0, 1, 5)] + [(1, *ONE)] * 3
    assert batches(both(requests, **preferred)) == {0: (0, 1), 5: (2, 3, 4)}
    preferred["max_queue_delay_microseconds"] = 9 * SECOND
    assert batches(both(requests, **preferred)) == {0: (0, 1), 5: (2, 3), 10: (4,)}


def test_an_arrival_that_completes_a_preferred_size_ends_the_wait():
    delay = dict(max_queue_delay_microseconds=20 * SECOND, max_batch_size=2)
    assert batches(both([(0, *ONE), (3, *ONE)], **delay)) == {3: (0, 1)}


def test_a_request_without_kv_closes_the_batch():
    delay = dict(max_queue_delay_microseconds=20 * SECOND)
    log = both([(0, 8, 8), (0, 8, 8), (0, 8, 8)], num_blocks=40, **delay)
    assert log[0].new == (0, 1) and log[0].limited_by == "blocks"


def test_padding_and_the_cut_at_a_preferred_size():
    """KV and padding are those of the batch that is sent, not of all that were looked at."""
    knobs = dict(preferred_batch_size=(2,), allow_ragged_batch=False)
    log = both([(0, 2, 2), (0, 4, 2), (0, 9, 9)], **knobs)
    assert log[0].new == (0, 1) and log[0].extra_tokens == 2
    assert log[0].free_blocks == 64 - 2 * (4 + 2)


LEVELS = dict(priority_levels=2, default_priority_level=2, max_batch_size=1)


def test_levels_are_served_in_turn_and_in_order():
    """Priorities that are no level get the default level."""
    log = both([(0, *ONE, 2), (0, *ONE, 1), (0, *ONE, 0), (0, *ONE, 7), (0, *ONE, 1)], **LEVELS)
    assert [new for (new,) in batches(log).values()] == [1, 4, 0, 2, 3]


def test_without_levels_priorities_mean_nothing():
    log = both([(0, *ONE, 2), (0, *ONE, 1)], max_batch_size=1)
    assert [new for (new,) in batches(log).values()] == [0, 1]


TIMEOUT = dict(max_batch_size=1, default_timeout_microseconds=2 * SECOND)


def test_a_request_that_waited_too_long_is_rejected():
    """Expired is later than the deadline, not at it; refused while a batch runs."""
    log = both([(0, 1, 2), (0, *ONE), (0, *ONE)], **TIMEOUT)
    assert batches(log) == {0: (0,), 2: (1,)}
    assert refused(log) == {2: ("timeout", 3)}


def test_a_delayed_request_comes_after_those_in_time():
    delay = TIMEOUT | dict(timeout_action="DELAY")
    log = both([(0, 1, 4), (0, *ONE), (3, *ONE), (4, *ONE)], **delay)
    assert [new for (new,) in batches(log).values()] == [0, 2, 3, 1]
    # But before all of the next level.
    log = both([(0, 1, 4, 1), (0, *ONE, 1), (3, *ONE, 2)], **(LEVELS | delay))
    assert [new for (new,) in batches(log).values()] == [0, 1, 2]


def test_an_own_deadline_only_shortens_and_needs_a_default():
    requests = [(0, 1, 6), (0, *ONE, 0, 1), (0, *ONE, 0, 30)]
    override = TIMEOUT | dict(allow_timeout_override=True)
    assert refused(both(requests, **override)) == {1: ("timeout", 2), 2: ("timeout", 3)}
    assert refused(both(requests, **TIMEOUT)) == {1: ("timeout", 3), 2: ("timeout", 3)}
    override["default_timeout_microseconds"] = 0
    assert not refused(both(requests, **override))


def test_a_full_queue_refuses_on_arrival():
    log = both([(0, 1, 3), (1, *ONE), (1, *ONE), (1, *ONE)], max_queue_size=2)
    assert refused(log) == {3: ("queue_full", 1)}
    # Each level has a queue of its own.
    levels = dict(max_queue_size=1, priority_levels=2, default_priority_level=1)
    log = both([(0, 1, 3), (1, *ONE, 1), (1, *ONE, 2), (1, *ONE, 2)], **levels)
    assert refused(log) == {3: ("queue_full", 1)}


def _wake(state, plan):
    return dict(seconds=plan.wake.seconds, nanoseconds=plan.wake.nanoseconds)


@pytest.mark.parametrize(
    ("knobs", "moment"),
    [
        (dict(max_queue_delay_microseconds=2_500_000), (2, 500_000_000)),
        # A request's deadline comes first: it has passed a microsecond later.
        (
            dict(
                max_queue_delay_microseconds=9 * SECOND, default_timeout_microseconds=SECOND,
            ),
            (1, 1000),
        ),
        (dict(max_queue_delay_microseconds=0), None),
    ],
)
def test_it_says_when_to_look_again(knobs, moment):
    one = case([(0, *ONE)], **knobs)
    turns = run_watched(one.policy(), one.workload, LIMITS, one.system(), watch=_wake)
    never = (np.iinfo(np.int32).max, 999_999_999)
    first = turns[0][1]
    assert (int(first["seconds"]), int(first["nanoseconds"])) == (moment or never)


# Knobs.


@pytest.mark.parametrize(
    "changed",
    [
        dict(max_batch_size=2), dict(preferred_batch_size=(2,)),
        dict(max_queue_delay_microseconds=2 * SECOND), dict(priority_levels=2),
        dict(default_priority_level=2), dict(timeout_action="DELAY"),
        dict(default_timeout_microseconds=4 * SECOND), dict(allow_timeout_override=True),
        dict(max_queue_size=2), dict(allow_ragged_batch=False),
    ],
    ids="-".join,
)
def test_knob_changes_a_decision(changed):
    base = dict(default_timeout_microseconds=3 * SECOND)
    if "default_priority_level" in changed:
        base |= dict(priority_levels=2, default_priority_level=1)
    if "priority_levels" in changed:
        changed = changed | dict(default_priority_level=1)
    requests = [(0, 4, 5), (1, 2, 2, 0, 2), (1, 3, 2, 2), (1, 2, 2, 1), (3, 3, 2), (4, 2, 2, 2)]
    requests += [(4, 2, 2, 1), (9, 1, 1)]

    def seen(knobs):
        log = both(requests, **knobs)
        return [(entry.scheduled, entry.refused, entry.extra_tokens) for entry in log]

    small = dict(max_batch_size=3)
    assert seen(small | base) != seen(small | base | changed)


def test_decoupled_is_a_fact_for_whoever_delivers():
    assert policies.triton().traits.deliver_at == "batch_end"
    assert policies.triton(decoupled=True).traits.deliver_at == "token"


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        (dict(max_batch_size=0), "max_batch_size = 0"),
        (dict(preferred_batch_size=(9,)), r"preferred_batch_size = \(9,\)"),
        (dict(preferred_batch_size=(0, 2)), r"preferred_batch_size = \(0, 2\)"),
        (dict(max_batch_size=64, preferred_batch_size=range(1, 20)), "at most 16 sizes"),
        (dict(max_queue_delay_microseconds=-1), "max_queue_delay_microseconds = -1"),
        (dict(default_timeout_microseconds=2**31), "default_timeout_microseconds = 2147483648"),
        (dict(max_queue_size=1.5), "max_queue_size = 1.5"),
        (dict(priority_levels=2), "default_priority_level = 0"),
        (dict(default_priority_level=1), "default_priority_level = 1"),
        (dict(timeout_action="WAIT"), "timeout_action = 'WAIT'"),
    ],
)
def test_impossible_values_are_named(knobs, word):
    with pytest.raises(ValueError, match=word):
        policies.triton(**knobs)


# Invariants over random workloads.


def test_invariants_of_every_decision():
    """No batch is joined or split; without delay an idle instance leaves nobody waiting."""

    @drawn(150)
    @given(case=CASES["triton"])
    def hold(case):
        running: set[int] = set()
        for entry in array_log(case):
            running -= set(entry.aborted)
            assert not (running and entry.new)
            assert not entry.preempted
            running |= set(entry.new)
            assert entry.running == len(running) <= case.knobs["max_batch_size"]
            if not case.knobs["max_queue_delay_microseconds"]:
                assert running or not entry.queue
            running -= set(entry.finished)

    hold()


def test_an_override_without_a_default_changes_nothing():
    """Over random workloads, deadlines and all."""

    @drawn(40)
    @given(case=CASES["triton"])
    def same(case):
        without = case.knobs | dict(default_timeout_microseconds=0, allow_timeout_override=False)
        override = without | dict(allow_timeout_override=True)
        assert array_log(replace(case, knobs=without)) == array_log(replace(case, knobs=override))

    same()


# Seeded faults.

FAULTS = {
    "one request more": with_knob(max_batch_size=lambda value: min(value + 1, 6)),
    "no preferred size": with_knob(preferred_batch_size=lambda value: value * 0 + 6),
    "delay one microsecond more": with_knob(max_queue_delay_microseconds=lambda value: value + 1),
    "timeout one microsecond less": with_knob(
        default_timeout_microseconds=lambda value: value - (value > 0)
    ),
    "delays in the place of rejecting": with_knob(rejects=lambda value: not value),
    "levels ignored": with_knob(priority_levels=lambda value: 0),
    "queue one longer": with_knob(max_queue_size=lambda value: value + (value > 0)),
    "override ignored": with_knob(allow_timeout_override=lambda value: False),
    "padding the other way": with_knob(padded=lambda value: not value),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_seeded_fault_is_noticed(fault):
    assert noticed("triton", FAULTS[fault])
