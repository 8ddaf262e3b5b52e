"""The megastep: several iterations in one dispatch, each scheduled anew on the device.

The body of the loop is model, commit, schedule. It stays on one rung, because a switch between
rungs inside the loop would copy the KV cache each time; the iteration that needs another rung has
been decided already, and the host runs it there. Requests in the window enter within a dispatch;
what the host has not offered yet becomes visible when the dispatch ends.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.commit import commit
from cbjax.core.control import when
from cbjax.core.inbox import Inbox
from cbjax.core.ladder import Rung
from cbjax.core.limits import Limits
from cbjax.core.plan import Emitted, Plan
from cbjax.core.policy import Policy
from cbjax.core.schedule import schedule
from cbjax.core.state import State
from cbjax.engine.sampling import SamplingParams
from cbjax.engine.step_programs import forward_step, sample_step
from cbjax.models import ModelConfig, Weights
from pallas_kernels.quantised import Cache


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dispatch:
    """What a megastep did; K is the most iterations that it may take.

    Attributes:
        plans: of each iteration, leaves `[K, ...]`; meaningless from `count` on.
        emitted: of each iteration, likewise.
        count: iterations computed.
        pending: the decision that was made last but not computed; meaningful if `decided`.
        decided: whether there is one.
    """

    plans: Plan
    emitted: Emitted
    count: Int[Array, ""]
    pending: Plan
    decided: Bool[Array, ""]

    def rows(self) -> list[tuple[Plan, Emitted]]:
        """Plan and result of each iteration, of a dispatch whose arrays are on the host."""
        return [
            jax.tree.map(lambda leaf, at=at: leaf[at], (self.plans, self.emitted))
            for at in range(int(self.count))
        ]


@dataclass(frozen=True)
class Shape:
    """What a megastep's program is compiled for."""

    config: ModelConfig
    limits: Limits
    rung: Rung
    smaller: tuple[Rung, ...]  # the rungs before it, which smaller batches would take
    most: int  # K
    attention: str | None
    vocab_size: int
    greedy_only: bool


@partial(
    jax.jit, static_argnames=("shape",), donate_argnames=("keys", "values", "state")
)
def megastep(
    policy: Policy, weights: Weights, keys: Cache, values: Cache, state: State, plan: Plan,
    params: SamplingParams, inbox: Inbox, limit: Int[Array, ""], ends_leave: Bool[Array, ""], *,
    shape: Shape,
) -> tuple[State, Cache, Cache, Dispatch]:
    """Compute the plan, then go on deciding and computing while the batch stays on its rung.

    Args:
        policy: decides.
        weights: the model's.
        keys, values: the KV cache; donated.
        state, plan: as `schedule` returned them; the plan fits the rung. The state is donated.
        params: sampling settings of all rows.
        inbox: without arrivals: the clock, which stands still in a dispatch, and the backlog.
        limit: most iterations, at most K.
        ends_leave: leave when a request ends, because someone outside waits for its row.
        shape: static.

    Returns:
        The state, the cache, and what was done.
    """
    def turn(carry):
        state, plan, keys, values, records, count, _ = carry
        logits, rows, outputs, keys, values = forward_step(
            weights, keys, values, state, plan, config=shape.config, rung=shape.rung,
            attention=shape.attention,
        )
        tokens, stopped = sample_step(
            logits, rows, outputs, params, vocab_size=shape.vocab_size,
            greedy_only=shape.greedy_only,
        )
        state, emitted = commit(state, plan, tokens, stopped, inbox.clock)
        records = jax.tree.map(
            lambda kept, new: kept.at[count].set(new), records, (plan, emitted)
        )
        count = count + 1
        goes_on = (count < limit) & ~(ends_leave & jnp.any(emitted.finished != 0))
        state, plan = when(
            goes_on, lambda pair: schedule(policy, pair[0], inbox, shape.limits), (state, plan)
        )
        return state, plan, keys, values, records, count, goes_on

    def stays(carry):
        _, plan, _, _, _, count, decided = carry
        return (count == 0) | (decided & _fits(plan, shape))

    def result_of(state, plan):
        nobody = jnp.zeros_like(plan.requests), jnp.zeros_like(plan.samples)
        return commit(state, plan, *nobody, inbox.clock)[1]

    one = plan, jax.eval_shape(result_of, state, plan)
    records = jax.tree.map(lambda leaf: jnp.zeros((shape.most, *leaf.shape), leaf.dtype), one)
    carry = (state, plan, keys, values, records, jnp.int32(0), jnp.bool_(False))
    state, plan, keys, values, records, count, decided = lax.while_loop(stays, turn, carry)
    plans, emitted = records
    return state, keys, values, Dispatch(plans, emitted, count, plan, decided)


def _fits(plan: Plan, shape: Shape) -> Bool[Array, ""]:
    """Whether the ladder would give the batch this rung and no other, and no KV moves before."""
    tokens, sequences = plan.scheduled_tokens + plan.extra_tokens, plan.num_sequences

    def holds(rung: Rung):
        return (tokens <= rung.tokens) & (sequences <= rung.sequences)

    fits = holds(shape.rung) & (tokens > 0) & ~plan.moves_kv()
    for rung in shape.smaller:
        fits &= ~holds(rung)
    return fits
