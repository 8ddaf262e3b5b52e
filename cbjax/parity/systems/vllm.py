"""Recordings of vLLM's V1 scheduler."""

from typing import Any

from cbjax import policies
from cbjax.core.limits import Limits
from cbjax.core.log import IterationRecord
from cbjax.parity.traces import Fields, Format, NotRead, Trace
from cbjax.parity.workload import Request, Workload

_LIMITS = Limits(
    seats=32, window=64, tokens=512, blocks=1100, blocks_per_sequence=128, inbox=64, context=512,
    cached_tokens=40_000,
)


def _read(recorded: dict[str, Any]) -> Trace:
    knobs = dict(recorded["knobs"])
    if knobs.pop("async_scheduling"):
        raise NotRead("async_scheduling = true: only the synchronous scheduler is read")
    requests = tuple(
        Request(
            one["id"], one["arrival_iteration"], one["prompt_tokens"], one["output_tokens"],
            priority=one["priority"], token_ids=tuple(one.get("prompt_token_ids", ())),
        )
        for one in recorded["requests"]
    )
    return Trace(
        name=f"vllm {recorded['version']} seed {recorded['seed']}", policy=policies.vllm(**knobs),
        block_size=recorded["block_size"], num_blocks=recorded["usable_blocks"],
        max_length=recorded["max_model_len"], workload=Workload(requests),
        iterations=recorded["iterations"],
        marked="the original never ends" if recorded.get("hang") else None,
    )


def _fields(entry: IterationRecord, watched: dict[str, Any]) -> Fields:
    return dict(
        scheduled=entry.scheduled, new=entry.new, resumed=entry.resumed,
        preempted=entry.preempted, finished=entry.finished, free_blocks=entry.free_blocks,
        waiting=entry.waiting, running=entry.running,
        cached={str(request): tokens for request, tokens in entry.cached},
    )


FORMAT = Format("vllm", _LIMITS, _read, _fields)
