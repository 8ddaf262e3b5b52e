"""The backlog of the host's loop: in order, and no request is looked at for another's sake."""

from dataclasses import dataclass

import numpy as np
import pytest

from cbjax import policies
from cbjax.core.ladder import ladder
from cbjax.core.limits import system
from cbjax.engine.clock import UnitClock
from cbjax.engine.loop import Arrival, Loop
from cbjax.engine.sizing import limits_for

READS: list[str] = []


@dataclass(frozen=True)
class Watched(Arrival):
    """An arrival that notes who reads it."""

    def __getattribute__(self, name):
        READS.append(name)
        return super().__getattribute__(name)


class _NoModel:
    def place(self, request_id, row):
        pass

    def move(self, state, host_plan):
        pass

    def execute(self, state, plan, host_plan, rung):
        rows = host_plan.requests.shape[0]
        return np.zeros(rows, np.int32), np.zeros(rows, bool)


@pytest.fixture
def loop():
    policy = policies.vllm(max_num_batched_tokens=16, max_num_seqs=4)
    limits = limits_for(
        policy, block_size=4, num_blocks=40, max_length=64, iteration_tokens=None, window=4
    )
    numbers = system(limits, block_size=4, num_blocks=40, max_length=64)
    return Loop(policy, limits, numbers, ladder(16, 4), _NoModel(), UnitClock())


def test_submitting_and_aborting_read_no_other_request(loop):
    count = 500
    requests = [Watched(request_id, 4, 2) for request_id in range(count)]
    READS.clear()
    for one in requests:
        loop.submit(one)
    with pytest.raises(ValueError, match="no living request"):
        loop.submit(requests[-1])
    for one in range(count - 1, 0, -1):
        assert loop.abort(one)
    assert loop.alive == 1
    assert len(READS) < 10 * count


def test_those_who_wait_enter_in_the_order_in_which_they_came(loop):
    for request_id in range(40):
        loop.submit(Arrival(request_id, 4, 2))
    assert loop.abort(20) and not loop.abort(20)
    loop.submit(Arrival(20, 4, 2))
    entered = []
    while loop.alive:
        entered += loop.step().entered
    assert entered == [*range(20), *range(21, 40), 20]
