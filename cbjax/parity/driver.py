"""Steps the array policies over a workload, without a model: on the host, or in one compiled loop.

Both keep the backlog (requests that found no free row) and write one `IterationRecord` an
iteration. The host's way can look at the state after each verb; the compiled way is the fast one.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cbjax.core.commit import commit, commit_jit
from cbjax.core.inbox import Inbox, door, empty_inbox
from cbjax.core.limits import Limits, System
from cbjax.core.log import IterationRecord, record
from cbjax.core.policy import Policy
from cbjax.core.rows import NO_REQUEST, NO_ROW, Status
from cbjax.core.schedule import schedule, schedule_jit
from cbjax.core.state import initial_state
from cbjax.core.time import Time
from cbjax.parity.workload import Workload, as_arrays, output_token

_TURNS = 64  # iterations of one call of the compiled loop

Check = Callable[..., None]
Watch = Callable[..., dict[str, Any]]


def run(
    policy: Policy, workload: Workload, limits: Limits, system: System, *, iterations: int = 5000
) -> list[IterationRecord]:
    """Serve the workload inside a compiled loop; see `run_watched`."""
    turns = run_watched(policy, workload, limits, system, iterations=iterations)
    return [entry for entry, _ in turns]


def run_watched(
    policy: Policy, workload: Workload, limits: Limits, system: System, *, iterations: int = 5000,
    watch: Watch | None = None,
) -> list[tuple[IterationRecord, dict[str, Any]]]:
    """Serve the workload inside a compiled loop until all requests have ended.

    Args:
        policy: decides.
        workload: at most `limits.inbox` requests.
        limits: the capacities; one value for all tests of a module, so that it compiles once.
        system: the numbers.
        iterations: more than these raise.
        watch: `(state, plan) -> dict of arrays`, asked between `schedule` and `commit`: what a
            comparison needs beyond the record. One function for all calls: it is compiled in.

    Returns:
        One record an iteration, idle ones included, and what was watched in it (numpy).

    Raises:
        RuntimeError: not done after so many iterations.
    """
    arrays = as_arrays(workload, limits.inbox, limits.context)
    state = initial_state(policy, limits, system)
    gone = jnp.zeros(limits.inbox, bool)
    log: list[tuple[IterationRecord, dict[str, Any]]] = []
    while len(log) < iterations:
        turns, state, gone, pages = _turns(policy, state, arrays, gone, len(log), limits, watch)
        pages = jax.device_get(pages)
        leaves, shape = jax.tree.flatten(pages)
        for turn in range(int(turns)):
            page = jax.tree.unflatten(shape, [leaf[turn] for leaf in leaves])
            *facts, watched = page
            log.append((_record(len(log), *facts), watched))
        if turns < _TURNS:
            return log
    raise RuntimeError(f"not done after {iterations} iterations: {log[-1]}")


def run_on_host(
    policy: Policy, workload: Workload, limits: Limits, system: System, *,
    iterations: int = 5000, check: Check | None = None, needs: bool = False,
) -> list[IterationRecord]:
    """The same, two dispatches an iteration, as an engine does it.

    Args:
        check: called as `check(state, plan)` after `schedule` and `check(state, None)` after
            `commit`.
        needs: record the blocks that waiting requests need.
    """
    arrays = as_arrays(workload, limits.inbox, limits.context)
    state = initial_state(policy, limits, system)
    gone = jnp.zeros(limits.inbox, bool)
    log: list[IterationRecord] = []
    while len(log) < iterations:
        if not _unfinished(state, arrays, gone):
            return log
        gone, dropped, inbox = _offer_jit(policy, state, arrays, gone, len(log), limits)
        state, plan = schedule_jit(policy, state, inbox, limits)
        if check:
            check(state, plan)
        gone, stopped = _after_jit(state, arrays, gone, inbox, plan)
        tokens = _tokens(state)
        state, emitted = commit_jit(state, plan, tokens, stopped, _moment(len(log) + 1))
        if check:
            check(state, None)
        entry = _record(len(log), dropped, inbox, plan, emitted, state if needs else None)
        log.append(entry)
    raise RuntimeError(f"not done after {iterations} iterations: {log[-1]}")


def _record(iteration, dropped, inbox, plan, emitted, state=None) -> IterationRecord:
    entry = record(iteration, inbox, plan, emitted, state)
    ended = tuple(np.flatnonzero(dropped).tolist()) + entry.aborted
    return replace(entry, aborted=tuple(sorted(ended)))


def _moment(iteration) -> Time:
    return Time(jnp.int32(iteration), jnp.int32(0))


def _unfinished(state, arrays, gone):
    to_come = (arrays["arrival"] < np.iinfo(np.int32).max) & ~gone
    return jnp.any(to_come) | jnp.any(state.rows.status != Status.FREE)


def _offer(policy: Policy, state, arrays, gone, now, limits: Limits):
    """The inbox of one iteration: everything that has arrived and holds no row, and the aborts."""
    size = limits.inbox
    wanted = arrays["abort_at"] == now
    named = jnp.zeros(size, bool).at[
        jnp.where(wanted, arrays["abort_id"], size)
    ].set(True, mode="drop")
    # What has not entered a row yet ends here; the scheduler has never heard of it.
    dropped = (arrays["arrival"] <= now) & ~gone & named
    gone = gone | dropped
    here = (arrays["arrival"] <= now) & ~gone
    place = jnp.where(here, jnp.cumsum(here) - 1, size)

    def line_up(values, fill=0):
        return jnp.full(size, fill, jnp.int32).at[place].set(values, mode="drop")

    prompt, request = line_up(arrays["prompt"]), line_up(jnp.arange(size), NO_REQUEST)
    abort = jnp.where(wanted, arrays["abort_id"], NO_REQUEST)
    _, refusals = door(prompt, line_up(arrays["max_tokens"]), limits, state.system, policy.traits)
    passing = jnp.sum((request != NO_REQUEST) & (refusals == 0))
    rows = state.rows
    aborted = jnp.any(rows.request[:, None] == abort[None, :], axis=1)
    free_rows = jnp.sum((rows.status == Status.FREE) | aborted)
    empty, never = empty_inbox(limits), np.iinfo(np.int32).max
    inbox = Inbox(
        count=jnp.sum(here), request=request, group=jnp.asarray(empty.group), prompt=prompt,
        known=prompt, max_tokens=line_up(arrays["max_tokens"]),
        predicted=jnp.asarray(empty.predicted), priority=line_up(arrays["priority"]),
        arrival=Time(line_up(arrays["arrival"]), jnp.zeros(size, jnp.int32)),
        deadline=Time(line_up(arrays["deadline"], never), jnp.zeros(size, jnp.int32)),
        token_ids=_line_up_rows(arrays["token_ids"], place), abort=abort,
        backlog=jnp.maximum(passing - free_rows, 0), clock=_moment(now),
    )
    return gone, dropped, inbox


def _line_up_rows(table, place):
    return jnp.zeros(table.shape, jnp.int32).at[place].set(table, mode="drop")


def _tokens(state):
    return output_token(state.rows.request, state.outputs)


def _after(state, arrays, gone, inbox: Inbox, plan):
    """Who is behind the door now, and which rows produce a stop token."""
    size = gone.shape[0]
    settled = (plan.entered != NO_ROW) | (plan.turned_away != 0)
    gone = gone.at[jnp.where(settled, inbox.request, size)].set(True, mode="drop")
    rows = state.rows
    stop_after = arrays["stop_after"][jnp.clip(rows.request, 0)]
    stopped = plan.samples & (rows.known + 1 - rows.prompt == stop_after)
    return gone, stopped


_offer_jit = jax.jit(_offer, static_argnames=("limits",))
_after_jit = jax.jit(_after)


@partial(jax.jit, static_argnames=("limits", "watch"))
def _turns(policy: Policy, state, arrays, gone, first, limits: Limits, watch: Watch | None):
    """Up to `_TURNS` iterations; what happened in each of them, one page an iteration."""

    def turn(state, gone, now):
        gone, dropped, inbox = _offer(policy, state, arrays, gone, now, limits)
        state, plan = schedule(policy, state, inbox, limits)
        gone, stopped = _after(state, arrays, gone, inbox, plan)
        tokens, watched = _tokens(state), watch(state, plan) if watch else {}
        state, emitted = commit(state, plan, tokens, stopped, _moment(now + 1))
        return state, gone, (dropped, replace(inbox, token_ids=None), plan, emitted, watched)

    shapes = jax.eval_shape(turn, state, gone, jnp.int32(0))[2]
    pages = jax.tree.map(lambda leaf: jnp.zeros((_TURNS, *leaf.shape), leaf.dtype), shapes)

    def go_on(carry):
        index, state, gone, _ = carry
        return (index < _TURNS) & _unfinished(state, arrays, gone)

    def step(carry):
        index, state, gone, pages = carry
        state, gone, page = turn(state, gone, first + index)
        pages = jax.tree.map(lambda all, one: all.at[index].set(one), pages, page)
        return index + 1, state, gone, pages

    return lax.while_loop(go_on, step, (jnp.int32(0), state, gone, pages))


def compilations() -> int:
    """Programs compiled for the loop so far."""
    return _turns._cache_size()  # type: ignore[attr-defined]
