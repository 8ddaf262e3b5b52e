"""Every policy's state keeps its types: a second iteration, or another number, compiles nothing."""

import jax
import numpy as np
import pytest

from cbjax import policies
from cbjax.core.commit import commit
from cbjax.core.inbox import empty_inbox
from cbjax.core.limits import Limits, system
from cbjax.core.schedule import schedule
from cbjax.core.state import initial_state

LIMITS = Limits(
    seats=4, window=4, tokens=128, blocks=32, blocks_per_sequence=32, inbox=4, context=64,
    cached_tokens=128,
)


def small(name: str, seats: int):
    """The policy with few seats and a small budget, by whatever its knobs are called."""
    build = policies.get(name)
    plain = build()
    knobs = {plain.seats: seats}
    if plain.budget:
        knobs[plain.budget] = 64
    return build(**knobs)


@pytest.mark.parametrize("name", policies.names)
def test_a_policy_built_twice_is_one(name):
    """Otherwise each would compile a program of its own."""
    once, again = jax.tree.flatten(policies.get(name)()), jax.tree.flatten(policies.get(name)())
    assert once[1] == again[1] and hash(once[1]) == hash(again[1])


@pytest.mark.parametrize("name", policies.names)
def test_one_program_serves_every_iteration_and_number_of_seats(name):
    numbers = system(LIMITS, block_size=4, num_blocks=32, max_length=32)
    nothing = np.zeros(LIMITS.rows, np.int32)

    # A jit of its own: what other tests compiled does not count.
    @jax.jit
    def step(policy, state, inbox):
        state, plan = schedule(policy, state, inbox, LIMITS)
        return commit(state, plan, nothing, nothing > 0, inbox.clock)[0], plan

    for seats in (4, 3):
        policy = small(name, seats)
        state = initial_state(policy, LIMITS, numbers)
        for _ in range(3):
            state, plan = step(policy, state, empty_inbox(LIMITS))
    assert step._cache_size() == 1
    assert int(np.asarray(plan.scheduled_tokens)) == 0
