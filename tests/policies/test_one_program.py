"""Every policy's state keeps its types: a second iteration, or another number, compiles nothing."""

import inspect
from functools import partial

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
BUDGET = 64


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
        policy = policies.sized(name, seats, BUDGET)
        state = initial_state(policy, LIMITS, numbers)
        for _ in range(3):
            state, plan = step(policy, state, empty_inbox(LIMITS))
    assert step._cache_size() == 1
    assert int(np.asarray(plan.scheduled_tokens)) == 0


def switched():
    """Every policy as it is, and with each of its switches turned that needs no other knob."""
    for name in policies.names:
        build = policies.get(name)
        switches = [
            {knob.name: not knob.default}
            for knob in inspect.signature(build).parameters.values()
            if isinstance(knob.default, bool)
        ]
        for knobs in [{}, *switches]:
            try:
                policies.sized(name, 4, BUDGET, **knobs)
            except ValueError:
                continue
            yield name, knobs
    yield "sglang", dict(enable_priority_scheduling=True, disable_radix_cache=False)


@pytest.mark.parametrize(
    ("name", "knobs"), [pytest.param(*one, id="-".join([one[0], *one[1]])) for one in switched()]
)
def test_it_decides_without_compilation_too(name, knobs):
    """Knobs are then Python's numbers: `~True` is -2 there."""
    policy = policies.sized(name, 4, BUDGET, **knobs)
    numbers = system(LIMITS, block_size=4, num_blocks=32, max_length=32, swap_blocks=32)
    state = initial_state(policy, LIMITS, numbers)
    after, _ = jax.eval_shape(
        partial(schedule, policy, limits=LIMITS), state, empty_inbox(LIMITS)
    )
    types = [leaf.dtype for leaf in jax.tree.leaves(after)]
    assert types == [np.asarray(leaf).dtype for leaf in jax.tree.leaves(state)]
