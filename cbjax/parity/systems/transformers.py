"""Recordings of transformers' continuous batching: counts are those at the end of an iteration."""

from typing import Any

import jax.numpy as jnp

from cbjax import policies
from cbjax.core.limits import Limits
from cbjax.core.log import IterationRecord
from cbjax.core.rows import NO_REQUEST, NO_ROW
from cbjax.parity.traces import Fields, Format, Trace
from cbjax.parity.workload import Request, Workload

_CONTEXT = 512  # most tokens of a sequence
# More may be active than a batch holds: a seat for every request.
_LIMITS = Limits(
    seats=40, window=40, tokens=512, blocks=512, blocks_per_sequence=128, inbox=40,
    context=_CONTEXT, cached_tokens=32 * 512,
)
_GROUPS = 64  # more than there are groups
_BLOCKS = ("free_before", "findable_before", "registered", "num_blocks")
_ABSENT = dict(attempts=1, fast=0, cpu=[], cached=0, blocked=0)  # fields left out if they are this


def _read(recorded: dict[str, Any]) -> Trace:
    knobs = dict(recorded["knobs"])
    numbers = dict(
        block_size=knobs.pop("page_size"), num_blocks=knobs.pop("num_blocks"),
        swap_blocks=knobs.pop("cpu_offload_blocks", 0),
    )
    for derived in ("safety_margin_resolved", "cpu_offload_space"):
        knobs.pop(derived)
    requests = tuple(
        Request(
            one["id"], one["arrival_iteration"], one["prompt_tokens"], one["output_tokens"],
            token_ids=_token_ids(one),
        )
        for one in recorded["requests"]
    )
    return Trace(
        name=f"{recorded['version']} seed {recorded['seed']}",
        policy=policies.transformers(**knobs, read_budget=recorded["read_budget"]),
        max_length=_CONTEXT, workload=Workload(requests),
        iterations=[_ABSENT | step for step in recorded["iterations"]],
        marked=recorded.get("error"), **numbers,
    )


def _token_ids(request: dict[str, Any]) -> tuple[int, ...]:
    """The opening of a request's group, then ids that nobody else has."""
    shared = request.get("prefix_tokens", 0)
    return tuple(
        _CONTEXT * (request["prefix_group"] if place < shared else _GROUPS + request["id"]) + place
        for place in range(request["prompt_tokens"])
    )


def _watch(state, plan) -> dict[str, Any]:
    """What will have ended, and what is left then; how the decision came about."""
    rows, seated = state.rows, state.running != NO_ROW
    outputs = rows.known + 1 - rows.prompt
    ends = plan.samples & (outputs >= rows.max_tokens) if state.ending is None else state.ending
    at_seat = jnp.where(seated, rows.request[state.running], NO_REQUEST)

    def requests(mask):
        return jnp.where(seated & mask[state.running], at_seat, NO_REQUEST)

    filled, cache = state.policy.filled, state.blocks.cache
    if filled is None:
        before: dict[str, Any] = {}
    else:
        before = dict(
            free_before=filled.free, findable_before=filled.findable,
            registered=jnp.sum(cache.registered), num_blocks=state.system.num_blocks,
        )
    return before | dict(
        new=requests(plan.admitted), finished=requests(ends),
        cpu=jnp.where(plan.swapped_out, rows.request, NO_REQUEST),
        free_blocks=state.blocks.free + jnp.sum(jnp.where(ends, rows.held, 0)),
        running=state.num_running - jnp.sum(ends), blocked=state.policy.frozen & ~jnp.any(ends),
        attempts=state.policy.attempts, fast=state.policy.fast,
    )


def _fields(entry: IterationRecord, watched: dict[str, Any]) -> Fields:
    numbers = {
        name: int(watched[name])
        for name in ("free_blocks", "running", "blocked", "attempts", "fast")
    }
    lists = {
        name: [one for one in watched[name].tolist() if one != NO_REQUEST]
        for name in ("new", "finished", "cpu")
    }
    # Named in the order in which they went: the newest first.
    preempted = entry.preempted[::-1]
    lists["cpu"] = [one for one in preempted if one in lists["cpu"]]
    fields = numbers | lists | dict(
        scheduled=entry.scheduled, preempted=preempted, waiting=entry.waiting, cached=0
    )
    if "registered" in watched:
        fields |= {name: int(watched[name]) for name in _BLOCKS}
    return fields


def _align(ours: list[Fields]) -> list[Fields]:
    """With block sharing: counts of blocks as the next decision finds them.

    Behind the last iteration nobody holds any, so all that is registered is findable.
    """
    aligned = []
    for index, fields in enumerate(ours):
        after = ours[index + 1] if index + 1 < len(ours) else None
        numbers = {name: value for name, value in fields.items() if name not in _BLOCKS}
        if "registered" in fields:
            cached = after["findable_before"] if after else fields["registered"]
            free = after["free_before"] if after else fields["num_blocks"] - cached
            numbers |= dict(free_blocks=free, cached=cached)
        aligned.append(numbers)
    return aligned


FORMAT = Format("transformers", _LIMITS, _read, _fields, _watch, _align)
