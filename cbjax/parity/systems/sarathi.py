"""Recordings of the five schedulers of the Sarathi-Serve repository.

Counts stand at the end of an iteration, and a batch lists prompt chunks before decodes.
"""

from typing import Any

import jax.numpy as jnp

from cbjax import policies
from cbjax.core.limits import Limits
from cbjax.core.log import IterationRecord
from cbjax.core.plan import Plan
from cbjax.core.rows import NO_ROW
from cbjax.core.state import State
from cbjax.parity.traces import Fields, Format, Trace
from cbjax.parity.workload import Request, Workload

_LIMITS = Limits(
    seats=64, window=64, tokens=8192, blocks=2700, blocks_per_sequence=320, inbox=64, context=0
)


def read(recorded: dict[str, Any], *, faithful: bool) -> Trace:
    """The trace with the original's faults, or with the sound rules."""
    knobs = {name: value for name, value in recorded["knobs"].items() if value is not None}
    if knobs.pop("pipeline_parallel_size") != 1:
        raise ValueError("pipeline_parallel_size: only recordings of one stage are read")
    if knobs.get("enable_dynamic_chunking_schedule"):
        knobs.pop("chunk_size")
    requests = tuple(
        Request(one["id"], one["arrival_iteration"], one["prompt_tokens"], one["output_tokens"])
        for one in recorded["requests"]
    )
    longest = recorded["knobs"]["max_model_len"]
    if faithful:
        # The original has no longest sequence: only a prompt is too long for it.
        reached = [
            one["prompt_tokens"] + max(one["output_tokens"], generated)
            for one, generated in zip(recorded["requests"], recorded["generated"], strict=True)
        ]
        longest = max(longest, *reached) + 1
    marked = recorded.get("error") or recorded.get("hang")
    return Trace(
        name=f"{recorded['version']} {recorded['scheduler']} seed {recorded['seed']}",
        policy=policies.sarathi(recorded["scheduler"], faithful=faithful, **knobs),
        block_size=recorded["block_size"], num_blocks=recorded["usable_blocks"],
        max_length=longest, workload=Workload(requests), iterations=recorded["iterations"],
        swap_blocks=recorded["usable_blocks"], marked=f"the original: {marked}" if marked else None,
    )


def _watch(state: State, plan: Plan) -> dict[str, Any]:
    row = jnp.where(plan.running != NO_ROW, plan.running, 0)
    return dict(
        request=plan.requests[row], held=state.rows.held[row], tokens=plan.grants,
        chunk=plan.prefilling, new=plan.admitted[row] & (plan.running != NO_ROW),
    )


def _fields(entry: IterationRecord, watched: dict[str, Any]) -> Fields:
    seats = list(zip(*(
        watched[name].tolist() for name in ("request", "tokens", "chunk", "new", "held")
    ), strict=True))[: entry.running]
    batch = [
        (request, tokens)
        for chunks in (True, False)
        for request, tokens, chunk, _, _ in seats
        if tokens and chunk == chunks
    ]
    returned = sum(held for request, *_, held in seats if request in entry.finished)
    places = [request for request, _ in batch]
    fields = dict(
        scheduled=batch, new=[request for request, _, _, new, _ in seats if new],
        preempted=entry.preempted, finished=sorted(entry.finished, key=places.index),
        free_blocks=entry.free_blocks + returned, waiting=entry.waiting,
        running=entry.running - len(entry.finished),
    )
    ignored = [request for request, _ in entry.refused]
    return fields | ({"ignored": ignored} if ignored else {})


FORMAT = Format(
    "sarathi", _LIMITS,
    lambda recorded: read(
        recorded, faithful=not (recorded.get("error") or recorded.get("hang"))
    ),
    _fields, _watch,
)
