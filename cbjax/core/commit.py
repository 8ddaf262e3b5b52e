"""`commit`: append the iteration's tokens, end what is done, give its blocks back."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core import time
from cbjax.core.control import when
from cbjax.core.plan import Emitted, Plan
from cbjax.core.reasons import FinishReason, IterationKind
from cbjax.core.receive import vacate
from cbjax.core.state import State
from cbjax.core.time import Time


def commit(
    state: State, plan: Plan, tokens: Int[Array, "P"], stopped: Bool[Array, "P"], clock: Time
) -> tuple[State, Emitted]:
    """Take in the results of the iteration that `plan` describes.

    Args:
        state: the state that `schedule` returned with the plan; may be donated.
        plan: the plan.
        tokens: sampled token of each row; read where `plan.samples`.
        stopped: rows whose token ends them (an end or stop token).
        clock: the moment the iteration ended.

    Returns:
        The state after the iteration, and what was emitted.
    """
    rows = state.rows
    got = plan.samples if state.ending is None else plan.samples & ~state.ending
    index = jnp.arange(rows.request.shape[0])
    # Out of range where nothing was sampled (and everywhere when no ids are kept): dropped.
    column = jnp.where(got, rows.known, state.token_ids.shape[1])
    token_ids = state.token_ids.at[index, column].set(tokens, mode="drop")

    known = rows.known + got
    full = (known - rows.prompt >= rows.max_tokens) | (known >= state.system.max_length)
    reason = jnp.select(
        [got & stopped, got & full],
        [int(FinishReason.STOP), int(FinishReason.LENGTH)],
        int(FinishReason.NONE),
    ).astype(jnp.int32)  # a number of Python's would leave its mark on the type of the state
    kind = jnp.select(
        [
            plan.scheduled_tokens == 0,
            plan.prefill_tokens == 0,
            plan.prefill_tokens == plan.scheduled_tokens,
        ],
        [int(IterationKind.IDLE), int(IterationKind.DECODE), int(IterationKind.PREFILL)],
        int(IterationKind.MIXED),
    )
    emitted_to = rows.request
    state = replace(
        state,
        rows=replace(rows, known=known, in_flight=jnp.zeros_like(rows.in_flight)),
        token_ids=token_ids,
        last_kind=kind.astype(jnp.int32),
        last_duration=time.subtract(clock, state.clock),
        clock=clock,
    )
    done = reason != FinishReason.NONE
    # With lag the next schedule is made before this ending is known: the row leaves one commit on.
    leaves = done if state.ending is None else state.ending
    state = when(jnp.any(leaves), lambda state: vacate(state, leaves), state)
    if state.ending is not None:
        state = replace(state, ending=done)
    if state.newest is not None:
        state = replace(state, newest=got)
    # What was delivered before it was lost is not news.
    news = got if plan.repeats is None else got & ~plan.repeats
    return state, Emitted(
        requests=emitted_to, tokens=tokens, emitted=news,
        finished=jnp.where(news, reason, int(FinishReason.NONE)),
        num_running=state.num_running,
    )


commit_jit = jax.jit(commit, donate_argnames=("state",))
