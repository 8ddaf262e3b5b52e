"""What a policy may ask of a preemption: its order, and (a fault of some systems) a new start."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from cbjax import policies
from cbjax.core.decision import Requeue
from cbjax.core.limits import system
from cbjax.core.policy import Traits
from cbjax.parity.driver import run
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import LIMITS

THREE = Workload(tuple(Request(id, 0, prompt=4, max_tokens=6) for id in range(3)))
NUMBERS = system(LIMITS, block_size=4, num_blocks=20, max_length=48)


def victims(order, requeue: Requeue):
    """vLLM's rules, but requests 0 and 2 (in their rows) are preempted in iteration 2."""
    plain = policies.vllm(max_num_batched_tokens=32, max_num_seqs=3)

    def decide(knobs, state, view):
        decision, state = plain.decide(knobs, state, view)
        lost = jnp.isin(jnp.arange(LIMITS.rows), jnp.array([0, 2])) & (view.clock.seconds == 2)
        return replace(
            decision, preempt=lost, admit=decision.admit & ~jnp.any(lost),
            grant=jnp.where(lost, 0, decision.grant),
            requeue=jnp.full(LIMITS.rows, int(requeue), jnp.int32),
            preempt_order=None if order is None else jnp.zeros(
                LIMITS.rows, jnp.int32
            ).at[jnp.array([0, 2])].set(jnp.array(order)),
        ), state

    return replace(plain, decide=decide)


@pytest.mark.parametrize(
    "order, requeue, preempted, queue",
    [
        (None, Requeue.FRONT, (2, 0), (0, 2)),
        (None, Requeue.END, (2, 0), (0, 2)),
        ([0, 1], Requeue.FRONT, (0, 2), (2, 0)),
        ([0, 1], Requeue.END, (0, 2), (0, 2)),
        ([1, 0], Requeue.END, (2, 0), (2, 0)),
    ],
)
def test_order_of_preemption_decides_the_place_in_the_queue(order, requeue, preempted, queue):
    log = run(victims(order, requeue), THREE, LIMITS, NUMBERS)
    assert (log[2].preempted, log[2].queue) == (preempted, queue)
    assert all(sorted(log[-1].finished + step.finished) for step in log[-1:])


def test_outputs_that_become_prompt_start_max_tokens_again():
    """FAULTS B2 as it is, for study; by default the boundary survives."""
    sound = victims(None, Requeue.FRONT)
    faulty = replace(sound, traits=Traits(restarts_outputs=True))

    def tokens(policy):
        log = run(policy, THREE, LIMITS, NUMBERS)
        # Every scheduled token but those of prompts and recomputation yields one output.
        return {
            id: next(step.iteration for step in log if id in step.finished) for id in range(3)
        }

    # Two outputs lie before the preemption, and one iteration is lost to it.
    assert tokens(sound) == {0: 6, 1: 5, 2: 6}
    assert tokens(faulty) == {0: 8, 1: 5, 2: 8}
