"""A schedule that runs one iteration ahead of the results."""

from dataclasses import replace

import numpy as np

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.policy import Traits
from cbjax.parity.driver import run, run_on_host
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import LIMITS

NUMBERS = system(LIMITS, block_size=4, num_blocks=20, max_length=48)


def ahead(**knobs):
    return replace(policies.vllm(max_num_batched_tokens=32, **knobs), traits=Traits(lag=1))


def test_a_request_that_ended_is_scheduled_once_more_for_nothing():
    two = Workload((Request(0, 0, 4, 2), Request(1, 0, 5, 9, stop_after=3)))
    log = run(ahead(max_num_seqs=2), two, LIMITS, NUMBERS)
    assert [step.scheduled for step in log] == [
        ((0, 4), (1, 5)), ((0, 1), (1, 1)), ((0, 1), (1, 1)), ((1, 1),),
    ]
    assert [step.finished for step in log] == [(), (0,), (1,), ()]
    assert [step.finish_reasons for step in log] == [(), ("length",), ("stop",), ()]
    # Its seat and blocks return one iteration later.
    assert [step.running for step in log] == [2, 2, 2, 1]


def test_the_seat_of_an_ended_request_is_free_one_iteration_later():
    three = Workload(tuple(Request(id, 0, 4, 1) for id in range(3)))
    log = run(ahead(max_num_seqs=1), three, LIMITS, NUMBERS)
    assert [step.new for step in log] == [(0,), (), (1,), (), (2,), ()]
    prompt = run(policies.vllm(max_num_batched_tokens=32, max_num_seqs=1), three, LIMITS, NUMBERS)
    assert [step.new for step in prompt] == [(0,), (1,), (2,)]


def test_everything_returns_at_the_end_even_after_an_abort_of_an_ended_request():
    """FAULTS D3 with a schedule that runs ahead: aborting what has ended changes nothing."""
    left = []

    def look(state, plan):
        left.append((int(state.blocks.free), int(np.sum(np.asarray(state.rows.status) != 0))))

    two = Workload((Request(0, 0, 4, 2), Request(1, 0, 5, 4)), aborts=((2, 0), (3, 1)))
    log = run_on_host(ahead(max_num_seqs=2), two, LIMITS, NUMBERS, check=look)
    assert left[-1] == (20, 0)
    assert [step.aborted for step in log if step.aborted] == [(0,), (1,)]
