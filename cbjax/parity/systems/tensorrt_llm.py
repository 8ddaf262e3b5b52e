"""Recordings of TensorRT-LLM's Python scheduler."""

from typing import Any

from cbjax import policies
from cbjax.core.limits import Limits
from cbjax.core.log import IterationRecord
from cbjax.core.plan import Plan
from cbjax.core.state import State
from cbjax.parity.traces import Fields, Format, Trace
from cbjax.parity.workload import Request, Workload

_LIMITS = Limits(
    seats=64, window=64, tokens=8192, blocks=7000, blocks_per_sequence=260, inbox=64, context=0
)
_KNOBS = (
    "max_batch_size", "max_num_tokens", "capacity_scheduler_policy", "enable_chunked_prefill",
    "context_chunking_policy", "chunk_unit_size",
)
_COMPARED = (
    "activated", "running", "fitting", "holding", "waiting", "free", "scheduled", "new",
    "preempted", "finished",
)


def _read(recorded: dict[str, Any]) -> Trace:
    # Knobs that the original leaves unset have their defaults.
    knobs = {name: recorded["knobs"][name] for name in _KNOBS}
    knobs = {name: value for name, value in knobs.items() if value is not None}
    requests = tuple(
        Request(one["id"], one["arrival_iteration"], one["prompt_tokens"], one["output_tokens"])
        for one in recorded["requests"]
    )
    hangs = recorded["status"] == "hang"
    return Trace(
        name=f"tensorrt_llm {recorded['version']} seed {recorded['seed']}",
        policy=policies.tensorrt_llm(**knobs), block_size=recorded["block_size"],
        num_blocks=recorded["usable_blocks"],
        max_length=max(one.prompt + one.max_tokens for one in requests),
        workload=Workload(requests),
        iterations=[{name: step[name] for name in _COMPARED} for step in recorded["iterations"]],
        marked="the original never ends: a request that never fits" if hangs else None,
    )


def _watch(state: State, plan: Plan) -> dict[str, Any]:
    """Along the run order: who, and in which phase; and the counts of the capacity stage."""
    rows, row = state.rows, plan.running
    before = rows.computed[row] - plan.grants
    return dict(
        request=plan.requests[row], generates=before >= state.policy.context[row],
        starts=(before == 0) & (plan.grants > 0), ends=rows.computed[row] == rows.known[row],
        holding=((row >= 0) & (rows.held[row] > 0)).sum(), active=state.policy.active,
        fitting=state.policy.fitting,
    )


def _fields(entry: IterationRecord, watched: dict[str, Any]) -> Fields:
    running = watched["request"][: entry.running].tolist()
    place = {id: index for index, id in enumerate(running)}

    def phase(pair: tuple[int, int]) -> tuple[int, int]:
        # As the original packs a batch: unfinished chunks, last chunks, generation.
        index = place[pair[0]]
        return (2 if watched["generates"][index] else int(watched["ends"][index]), pair[0])

    scheduled = sorted(entry.scheduled, key=phase)
    active = int(watched["active"])
    return dict(
        # Active are the oldest requests; those that own no KV wait for it here.
        active=sorted([*running, *entry.queue])[:active], running=active,
        fitting=int(watched["fitting"]), holding=int(watched["holding"]),
        waiting=entry.running + entry.waiting - active, free=entry.free_blocks,
        scheduled=scheduled, new=[id for id, _ in scheduled if watched["starts"][place[id]]],
        preempted=entry.preempted, finished=sorted(entry.finished),
    )


def _align(ours: list[Fields]) -> list[Fields]:
    """Activated: active now and not in the iteration before."""
    before: set[int] = set()
    for fields in ours:
        fields["activated"] = [id for id in fields["active"] if id not in before]
        before = set(fields["active"])
    return ours


FORMAT = Format("tensorrt_llm", _LIMITS, _read, _fields, _watch, _align)
