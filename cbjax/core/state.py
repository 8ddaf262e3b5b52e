"""The state of one system: rows, run order, blocks, token ids, counters, the policy's own state."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.blocks import Blocks, empty_blocks
from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy, Traits
from cbjax.core.reasons import IterationKind
from cbjax.core.rows import NO_ROW, Rows, Status, empty_rows
from cbjax.core.time import Time
from cbjax.core.view import View


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything that `schedule` and `commit` carry from iteration to iteration."""

    rows: Rows
    running: Int[Array, "S"]  # rows that hold a seat, in run order; NO_ROW behind the last
    num_running: Int[Array, ""]
    blocks: Blocks
    token_ids: Int[Array, "P C"]  # known tokens of each row; C = 0 keeps none
    system: System
    policy: Any  # PolicyState
    queue_front: Int[Array, ""]  # smallest queue key given so far
    queue_back: Int[Array, ""]  # next queue key at the end
    swap_free: Int[Array, ""]  # free blocks of the host pool
    # Ended, but seen as running for one more iteration; None without lag.
    ending: Bool[Array, "P"] | None
    # Got a token in the last iteration; None unless `Traits.drops_in_flight`.
    newest: Bool[Array, "P"] | None
    # Outputs that a preemption made prompt; None unless `Traits.restarts_outputs`.
    restarted: Int[Array, "P"] | None
    finished: Int[Array, ""]  # requests that ended since the last `schedule`
    last_kind: Int[Array, ""]  # IterationKind
    last_duration: Time
    clock: Time

    @property
    def outputs(self) -> Int[Array, "P"]:
        """Output tokens of each request, also those that became prompt: the next one's index."""
        made = self.rows.known - self.rows.prompt
        return made if self.restarted is None else made + self.restarted


def initial_state(policy: Policy, limits: Limits, system: System) -> State:
    """An empty system.

    Args:
        policy: its start-up rules are checked here.
        limits: the capacities.
        system: block size, usable blocks, longest sequence.

    Raises:
        ValueError: the policy has more seats or a larger budget than the limits hold, or one of its
            own rules is broken.
    """
    for capacity, knob in (("seats", policy.seats), ("tokens", policy.budget)):
        if knob is not None and policy.knobs[knob] > getattr(limits, capacity):
            raise ValueError(
                f"{knob} = {policy.knobs[knob]} exceeds limits.{capacity} = "
                f"{getattr(limits, capacity)}: raise the limit or lower {knob}"
            )
    if policy.traits.shares and not (limits.cached_tokens and limits.context):
        raise ValueError(
            f"policy {policy.name} shares prefixes, which needs token ids: limits.context = "
            f"{limits.context} and limits.cached_tokens = {limits.cached_tokens} must be above 0"
        )
    return _empty(limits, system, policy.init(policy.knobs, limits, system), policy.traits)


# One program instead of some sixty small ones: a sweep builds many states.
@partial(jax.jit, static_argnames=("limits", "traits"))
def _empty(limits: Limits, system: System, carried: Any, traits: Traits) -> State:
    state = State(
        rows=empty_rows(limits.rows),
        running=jnp.full(limits.seats, NO_ROW, jnp.int32),
        num_running=jnp.int32(0),
        blocks=empty_blocks(
            limits.rows, limits.blocks, limits.blocks_per_sequence, system.num_blocks,
            limits.cached_tokens if traits.shares else 0, traits.registers_ended,
            traits.free_order,
        ),
        token_ids=jnp.zeros((limits.rows, limits.context), jnp.int32),
        system=system,
        policy=carried,
        queue_front=jnp.int32(0),
        queue_back=jnp.int32(0),
        swap_free=system.swap_blocks,
        ending=jnp.zeros(limits.rows, bool) if traits.lag else None,
        newest=jnp.zeros(limits.rows, bool) if traits.drops_in_flight else None,
        restarted=jnp.zeros(limits.rows, jnp.int32) if traits.restarts_outputs else None,
        finished=jnp.int32(0),
        last_kind=jnp.int32(IterationKind.IDLE),
        last_duration=time.zero(),
        clock=time.zero(),
    )
    # The verbs may donate the state: every leaf needs a buffer of its own.
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.asarray(leaf).dtype, copy=True), state)


def view(state: State, backlog: Int[Array, ""], limits: Limits) -> View:
    """What the policy may see of the state."""
    rows = state.rows
    none = jnp.zeros_like(rows.held)
    waiting = (rows.status != Status.FREE) & (rows.status != Status.RUNNING)
    free = state.blocks.free
    if limits.shares_samples and state.blocks.cache is None:
        # Samples of one prompt count apart: what one of them gives up is what it seems to hold.
        free = state.system.num_blocks - jnp.sum(rows.held)
    return View(
        rows=rows, running=state.running, num_running=state.num_running,
        # Without shared blocks a row frees all it holds.
        freed=rows.held, hits_held=none, hits_free=none,
        free_blocks=free, evictable_blocks=jnp.int32(0), swap_blocks=state.swap_free,
        backlog=backlog, num_waiting=jnp.sum(waiting) + backlog, finished=state.finished,
        last_kind=state.last_kind, last_duration=state.last_duration, clock=state.clock,
        system=state.system, iteration_tokens=limits.tokens,
        blocks=None if state.blocks.cache is None else state.blocks,
        token_ids=None if state.blocks.cache is None else state.token_ids,
    )
