"""What must hold of a state after every verb, checked on the host in numpy.

The engine's debug mode and the tests call `check`; a broken invariant raises with its name and the
requests, rows, blocks and values concerned. Nothing here changes a state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from cbjax.core.blocks import NO_BLOCK
from cbjax.core.limits import Limits
from cbjax.core.plan import Plan
from cbjax.core.rows import NO_REQUEST, NO_ROW, Status
from cbjax.core.state import State


class InvariantError(Exception):
    """A state that cannot be: `invariant` names what is broken, the text says where."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


@dataclass(frozen=True)
class Snapshot:
    """What `check` remembers of a state, to compare the next one with."""

    seconds: int
    nanoseconds: int
    known: dict[int, int]  # tokens known, by request


def check(
    state: State, limits: Limits, plan: Plan | None = None, before: Snapshot | None = None
) -> Snapshot:
    """Check a state after a verb.

    Args:
        state: what `schedule` or `commit` returned.
        limits: the capacities.
        plan: the plan, after `schedule`; None after `commit`.
        before: what the check after the previous iteration returned; with it, time and progress are
            compared too. Give it after `commit` only, where an iteration is complete.

    Returns:
        The snapshot to give to the next check.

    Raises:
        InvariantError: naming the first invariant that does not hold.
    """
    state, plan = jax.device_get((state, plan))
    for invariant, detail in _broken(state, limits, plan, before):
        raise InvariantError(invariant, detail)
    rows = state.rows
    return Snapshot(
        int(state.clock.seconds), int(state.clock.nanoseconds),
        {
            int(rows.request[row]): int(rows.known[row])
            for row in np.flatnonzero(rows.status != Status.FREE)
        },
    )


def _broken(
    state: Any, limits: Limits, plan: Any, before: Snapshot | None
) -> Iterator[tuple[str, str]]:
    yield from _rows(state)
    yield from _run_order(state)
    yield from _tables(state)
    yield from _pool(state)
    if plan is not None:
        yield from _plan(state, limits, plan)
    if before is not None:
        yield from _progress(state, before)


def _rows(state: Any) -> Iterator[tuple[str, str]]:
    """Each request in exactly one row and one state; its counts in order."""
    rows = state.rows
    status = rows.status
    for row in np.flatnonzero((status < min(Status)) | (status > max(Status))):
        yield "one state per request", f"row {row} has the unknown status {status[row]}"
    used = status != Status.FREE
    for row in np.flatnonzero(used != (rows.request != NO_REQUEST)):
        yield "one state per request", (
            f"row {row} is {Status(status[row]).name} with request {rows.request[row]}"
        )
    handles, counts = np.unique(rows.request[used], return_counts=True)
    for request in handles[counts > 1]:
        held = np.flatnonzero(used & (rows.request == request)).tolist()
        yield "one row per request", f"request {request} is in rows {held}"
    for name, low, high in (
        ("0 <= computed", np.zeros_like(rows.computed), rows.computed),
        ("computed <= known", rows.computed, rows.known),
        ("prompt <= known", rows.prompt, rows.known),
        ("computed <= peak", rows.computed, rows.peak),
        ("0 <= in_flight <= computed", rows.in_flight, rows.computed),
        ("0 <= in_flight <= computed", np.zeros_like(rows.in_flight), rows.in_flight),
    ):
        for row in np.flatnonzero(used & (low > high)):
            yield name, f"request {rows.request[row]} in row {row}: {low[row]} > {high[row]}"
    longest = state.system.max_length
    for row in np.flatnonzero(used & (rows.known > longest)):
        yield "known <= max_length", (
            f"request {rows.request[row]} in row {row}: {rows.known[row]} > {longest}"
        )


def _run_order(state: Any) -> Iterator[tuple[str, str]]:
    """The run order lists the running rows, each once, without gaps."""
    running, rows = state.running, state.rows
    listed = running[running != NO_ROW]
    count = int(state.num_running)
    if len(listed) != count or np.any(running[:count] == NO_ROW):
        yield "run order", f"num_running = {count} but the list is {running.tolist()}"
    repeated, times = np.unique(listed, return_counts=True)
    for row in repeated[times > 1]:
        yield "run order", f"row {row} (request {rows.request[row]}) is listed twice"
    seated = np.flatnonzero(rows.status == Status.RUNNING)
    for row in sorted(set(listed.tolist()) ^ set(seated.tolist())):
        state_name = Status(rows.status[row]).name
        yield "run order", (
            f"row {row} (request {rows.request[row]}) is {state_name} and "
            f"{'listed' if row in listed else 'not listed'}"
        )


def _tables(state: Any) -> Iterator[tuple[str, str]]:
    """Block tables hold what `held` says, cover what is computed, and match the references."""
    rows, tables, refs = state.rows, state.blocks.tables, state.blocks.refs
    column = np.arange(tables.shape[1])
    # What a row does not hold is stale.
    tables = np.where(column < rows.held[:, None], tables, NO_BLOCK)
    for row in np.flatnonzero(np.sum(tables != NO_BLOCK, axis=1) != rows.held):
        yield "held matches the table", (
            f"request {rows.request[row]} in row {row} holds {rows.held[row]} blocks, its table is "
            f"{tables[row][: max(rows.held[row], 0)].tolist()}"
        )
    owned = tables[tables != NO_BLOCK]
    for block in np.unique(owned[(owned < 0) | (owned >= refs.shape[0])]):
        yield "blocks exist", f"a table names block {block} of {refs.shape[0]}"
    for block in np.flatnonzero(refs < 0):
        yield "references >= 0", f"block {block} has {refs[block]} references"
    counted = np.bincount(owned[(owned >= 0) & (owned < refs.shape[0])], minlength=refs.shape[0])
    for block in np.flatnonzero(counted != refs):
        owners = rows.request[np.any(tables == block, axis=1)].tolist()
        yield "references match the tables", (
            f"block {block} has {refs[block]} references and stands in the tables of {owners}"
        )
    running = rows.status == Status.RUNNING
    reach = rows.held * state.system.block_size
    for row in np.flatnonzero(running & (reach < rows.computed)):
        yield "KV covers what is computed", (
            f"request {rows.request[row]} in row {row}: {rows.computed[row]} tokens computed, "
            f"{rows.held[row]} blocks of {state.system.block_size}"
        )
    for row in np.flatnonzero(~running & (rows.held != 0)):
        yield "only running requests hold blocks", (
            f"row {row} is {Status(rows.status[row]).name} and holds {rows.held[row]} blocks"
        )


def _pool(state: Any) -> Iterator[tuple[str, str]]:
    """Free blocks and blocks in use are the whole pool, and no block is both."""
    blocks = state.blocks
    usable, free = int(state.system.num_blocks), int(blocks.free)
    used = int(np.sum(blocks.refs > 0))
    if free + used != usable or free < 0:
        yield "free + used = all blocks", f"{free} free + {used} used != {usable}"
    listed = _free_list(blocks, free)
    repeated, times = np.unique(listed, return_counts=True)
    for block in repeated[times > 1]:
        yield "a free block is listed once", f"block {block} is in the free list twice"
    if len(listed) != free:
        yield "free blocks are listed", f"{free} free blocks, {len(listed)} in the free list"
    for block in listed[blocks.refs[listed] > 0]:
        yield "a free block has no owner", (
            f"block {block} is free and has {blocks.refs[block]} references"
        )


def _free_list(blocks: Any, free: int) -> np.ndarray:
    size = blocks.ring.shape[0]
    if blocks.cache is None:
        return blocks.ring[(int(blocks.head) + np.arange(max(free, 0))) % size]
    listed: list[int] = []
    block = int(blocks.cache.after[size])
    while block != size and len(listed) <= size:
        listed.append(block)
        block = int(blocks.cache.after[block])
    return np.array(listed, np.int32)


def _plan(state: Any, limits: Limits, plan: Any) -> Iterator[tuple[str, str]]:
    """What was scheduled fits an iteration and belongs to running rows."""
    rows = state.rows
    total = int(plan.scheduled_tokens)
    if total != int(np.sum(plan.grants)):
        yield "scheduled tokens", f"{total} != the sum of {plan.grants.tolist()}"
    if total + int(plan.extra_tokens) > limits.tokens:
        yield "scheduled tokens <= limits.tokens", (
            f"{total} + {int(plan.extra_tokens)} of padding > {limits.tokens}"
        )
    for seat in np.flatnonzero((plan.grants < 0) | ((plan.grants > 0) & (plan.running == NO_ROW))):
        yield "grants to running rows", f"seat {seat} has no row and {plan.grants[seat]} tokens"
    for row, tokens in zip(plan.running, plan.grants, strict=True):
        if row != NO_ROW and tokens != rows.in_flight[row]:
            yield "grants to running rows", (
                f"request {rows.request[row]} in row {row} was granted {tokens} tokens and has "
                f"{rows.in_flight[row]} in flight"
            )
    strays = set(np.flatnonzero(rows.in_flight).tolist()) - set(plan.running.tolist())
    for row in sorted(strays):
        yield "grants to running rows", (
            f"row {row} (request {rows.request[row]}) has {rows.in_flight[row]} tokens in flight "
            "and no seat"
        )


def _progress(state: Any, before: Snapshot) -> Iterator[tuple[str, str]]:
    """Time never runs backwards, and an iteration that moves nothing must move the clock."""
    now = (int(state.clock.seconds), int(state.clock.nanoseconds))
    then = (before.seconds, before.nanoseconds)
    if now < then:
        yield "time never runs backwards", f"{now} after {then}"
    rows = state.rows
    used = np.flatnonzero(rows.status != Status.FREE)
    known = {int(rows.request[row]): int(rows.known[row]) for row in used}
    # A token that was under way may be taken back.
    lost = 0 if state.newest is None else 1
    for request in known.keys() & before.known.keys():
        if known[request] < before.known[request] - lost:
            yield "tokens are never lost", (
                f"request {request} knew {before.known[request]} tokens and knows "
                f"{known[request]}"
            )
    if now == then and known == before.known and known:
        yield "progress or time", (
            f"neither the clock ({now}) nor a request among {sorted(known)} moved"
        )
