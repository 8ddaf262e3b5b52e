"""Recorded decisions of SGLang's scheduler."""

from typing import Any

import jax.numpy as jnp

from cbjax import policies
from cbjax.core.limits import Limits
from cbjax.core.log import IterationRecord
from cbjax.core.rows import NO_ROW
from cbjax.parity.traces import Fields, Format, Trace
from cbjax.parity.workload import Request, Workload
from cbjax.policies._sglang_ratio import PARTS

_LIMITS = Limits(
    seats=64, window=48, tokens=16384, blocks=7000, blocks_per_sequence=272, inbox=48,
    context=272, cached_tokens=8192,
)
_KINDS = ("idle", "prefill", "mixed", "decode")


class _Ratio(float):
    """A recorded ratio, of nine decimals: equal to what lies within two units of the last one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(float(self) - float(other)) <= 2e-9

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = float.__hash__


def _read(recorded: dict[str, Any]) -> Trace:
    knobs = dict(recorded["knobs"])
    knobs.pop("page_size")
    marked = None if recorded["status"] == "ok" else recorded["error"] or recorded["status"]
    requests = tuple(
        Request(
            one["id"], one["arrival_iteration"], one["prompt_tokens"], one["output_tokens"],
            token_ids=tuple(one.get("prompt_token_ids", ())),
        )
        for one in recorded["requests"]
    )
    return Trace(
        name=f"sglang {recorded['version']} seed {recorded['seed']}",
        # Where the original hung or failed, ours is to end.
        policy=policies.sglang(
            **knobs, keep_finished=marked is None, check_memory=marked is not None
        ),
        block_size=recorded["block_size"],
        num_blocks=recorded["pool_tokens"] // recorded["block_size"],
        max_length=_LIMITS.blocks_per_sequence, workload=Workload(requests),
        iterations=[_step(step, recorded["block_size"]) for step in recorded["iterations"]],
        marked=marked,
    )


def _step(step: Fields, block_size: int) -> Fields:
    evictable = step.get("evictable", 0)
    return step | dict(
        ratio=_Ratio(step["ratio"]), free=step["free"] // block_size,
        evictable=evictable // block_size,
    )


def _watch(state, plan) -> dict[str, Any]:
    carried = state.policy
    prefills = jnp.sum(carried.fresh)
    mixed, batch = prefills > 0, carried.last_size > 0
    kind = jnp.select([plan.num_sequences == 0, mixed, batch], [0, 2, 1], 3)
    evictable = jnp.int32(0)
    if state.blocks.cache is not None:
        evictable = jnp.sum(state.blocks.cache.registered & (state.blocks.refs == 0))
    return dict(
        evictable=evictable, kind=kind, full=carried.full,
        decodes=jnp.where(mixed, carried.last_size - prefills, 0),
        ratio=carried.ratio.now, ghosts=carried.ghosts, ahead=state.ending is not None,
        chunked=jnp.where(carried.chunked == NO_ROW, -1, state.rows.request[carried.chunked]),
    )


def _fields(entry: IterationRecord, watched: dict[str, Any]) -> Fields:
    # In a mixed batch the prefills come first there; here they have the newer seats.
    decodes, chunked = int(watched["decodes"]), int(watched["chunked"])
    scheduled = entry.scheduled[decodes:] + entry.scheduled[:decodes]
    ids = [id for id, _ in scheduled]
    started = entry.new + entry.resumed
    # There, free blocks are those that hold nothing.
    evictable = int(watched["evictable"])
    return dict(
        kind=_KINDS[int(watched["kind"])], scheduled=scheduled,
        new=[id for id in ids if id in started], preempted=entry.preempted,
        finished=sorted(entry.finished, key=ids.index), free=entry.free_blocks - evictable,
        evictable=evictable,
        waiting=entry.waiting, running=entry.running + int(watched["ghosts"]),
        chunked=None if chunked < 0 else chunked, full=int(watched["full"]),
        ratio=int(watched["ratio"]) / PARTS, ahead=bool(watched["ahead"]),
    )


def _align(ours: list[Fields]) -> list[Fields]:
    """With the overlap loop the original sees an end one iteration later."""
    seen: list = []
    for step in ours:
        if step.pop("ahead"):
            step["finished"], seen = seen, step["finished"]
    return ours


FORMAT = Format("sglang", _LIMITS, _read, _fields, _watch, _align)
