"""TensorRT-LLM's in-flight batching: a capacity stage, then a micro-batch stage.

The first stage says who may own KV, the second who runs and how many tokens each computes. Active
are the oldest requests up to `max_batch_size`, whether or not they own KV yet; here those that do
not are waiting rows, so that the order of arrival is the one order that matters.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from cbjax.core import rules, time, victims
from cbjax.core.decision import Requeue
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy, Refusal
from cbjax.core.rows import NO_ROW, Status
from cbjax.core.steady import Steady, while_nobody_can_enter
from cbjax.core.time import Time
from cbjax.core.view import View
from cbjax.policies._chunks import equal_progress, first_come

_CAPACITY = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
_CHUNKING = ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")


def tensorrt_llm(
    max_batch_size: int = 2048,
    max_num_tokens: int = 8192,
    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT",
    enable_chunked_prefill: bool = False,
    context_chunking_policy: str = "FIRST_COME_FIRST_SERVED",
    chunk_unit_size: int = 0,
    batch_wait_timeout_ms: int = 0,
    batch_wait_timeout_iters: int = 0,
    batch_wait_max_tokens_ratio: float = 0.0,
) -> Policy:
    """TensorRT-LLM with its own knobs, names and defaults.

    Args:
        max_batch_size: seats.
        max_num_tokens: token budget of an iteration, decodes included.
        capacity_scheduler_policy: "GUARANTEED_NO_EVICT": a request is let in if KV for its whole
            output is left beside what the others may still grow by; "MAX_UTILIZATION": if KV for
            the coming step is left, and started requests make room for older ones, youngest first;
            "STATIC_BATCH": as the first, but only while nothing decodes.
        enable_chunked_prefill: a prompt may be split over iterations. Without it a prompt longer
            than `max_num_tokens` is refused.
        context_chunking_policy: how prompts share the budget when it is too small for all:
            "FIRST_COME_FIRST_SERVED" or "EQUAL_PROGRESS", one unit for each in turn.
        chunk_unit_size: a chunk that is not a prompt's last is a multiple of it; 0 = the KV block
            size, as the original has it.
        batch_wait_timeout_ms: how long an idle engine waits for a full batch, counted from the
            arrival of the oldest request.
        batch_wait_timeout_iters: for how many iterations prompts are held back while others decode.
        batch_wait_max_tokens_ratio: share of `max_num_tokens` that ends that wait. Only both of
            these together have an effect.

    Raises:
        ValueError: a knob is out of range.

    Source: TensorRT-LLM, main branch at 002f3cc3, `tensorrt_llm/_torch/pyexecutor/scheduler/
    scheduler.py`; recorded decisions of that file. Two faults of the original are mended: a request
    that never fits is refused or cut instead of blocking the queue for ever, and a paused request
    that outgrew `max_num_tokens` takes whole iterations instead of failing.
    """
    require_positive(max_batch_size=max_batch_size, max_num_tokens=max_num_tokens)
    for name, value, allowed in (
        ("capacity_scheduler_policy", capacity_scheduler_policy, _CAPACITY),
        ("context_chunking_policy", context_chunking_policy, _CHUNKING),
    ):
        if value not in allowed:
            raise ValueError(f"{name} = {value!r}: choose one of {list(allowed)}")
    for name, number, meaning in (
        ("chunk_unit_size", chunk_unit_size, "the block size"),
        ("batch_wait_timeout_ms", batch_wait_timeout_ms, "no wait"),
        ("batch_wait_timeout_iters", batch_wait_timeout_iters, "no wait"),
    ):
        if int(number) != number or number < 0:
            raise ValueError(f"{name} = {number!r}: give 0 for {meaning}, or a whole number")
    if not 0.0 <= batch_wait_max_tokens_ratio <= 1.0:
        raise ValueError(
            f"batch_wait_max_tokens_ratio = {batch_wait_max_tokens_ratio}: give a share of "
            "max_num_tokens, 0 <= share <= 1"
        )
    evicts = capacity_scheduler_policy == "MAX_UTILIZATION"
    return Policy(
        knobs=dict(
            max_batch_size=max_batch_size, max_num_tokens=max_num_tokens,
            static_batch=capacity_scheduler_policy == "STATIC_BATCH",
            enable_chunked_prefill=enable_chunked_prefill,
            equal_progress=context_chunking_policy == "EQUAL_PROGRESS",
            chunk_unit_size=chunk_unit_size, batch_wait_timeout_ms=batch_wait_timeout_ms,
            batch_wait_timeout_iters=batch_wait_timeout_iters,
            batch_wait_max_tokens_ratio=batch_wait_max_tokens_ratio,
        ),
        name="tensorrt_llm", init=_init, decide=_EVICTING if evicts else _RESERVING,
        steady=_steady, advance=_advance,
        seats="max_batch_size", budget="max_num_tokens",
        traits=Traits(reserves_output=not evicts),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carried:
    """What the two stages remember."""

    context: Int[Array, "P"]  # tokens of a running row's context phase: known when it started
    waited: Int[Array, ""]  # iterations for which prompts have been held back
    enough: Int[Array, ""]  # tokens of an iteration with which prompts are not held back
    # Of the last iteration, for whoever looks on: active requests, and those let through.
    active: Int[Array, ""]
    fitting: Int[Array, ""]


def _init(knobs: dict, limits: Limits, system: System) -> Carried:
    budget = int(knobs["max_num_tokens"])
    unit = int(knobs["chunk_unit_size"]) or int(system.block_size)
    if knobs["enable_chunked_prefill"] and unit > budget:
        raise ValueError(
            f"max_num_tokens = {budget} is below the chunk unit of {unit} tokens (chunk_unit_size, "
            "or the block size): no chunk would ever fit; raise the budget or lower the unit"
        )
    return Carried(
        context=jnp.zeros(limits.rows, jnp.int32), waited=jnp.int32(0),
        # On the host, in 64-bit floats, so that the product rounds as the original's does.
        enough=jnp.int32(math.ceil(float(knobs["batch_wait_max_tokens_ratio"]) * budget)),
        active=jnp.int32(0), fitting=jnp.int32(0),
    )


def _decide(knobs: dict, carried: Carried, view: View, *, evicts: bool):
    rows, budget = view.rows, knobs["max_num_tokens"]
    # A prompt that must run whole and never can; whoever ran before has been let in already.
    refused = (
        (rows.status == Status.WAITING) & (rows.prompt > budget)
        & jnp.logical_not(knobs["enable_chunked_prefill"])
    )
    runs = rows.status == Status.RUNNING
    generates = runs & (rows.computed >= carried.context)
    positions = rows.known if evicts else rows.prompt + rows.max_tokens
    need = jnp.maximum(blocks_for(positions, view.system.block_size) - rows.held, 0)

    queue, gathers, wake = _let_in(knobs, view, refused, runs, generates, need, evicts)
    line = _by_arrival(rows, queue.extra)
    here = line != NO_ROW

    def along(values):
        return jnp.where(here, values[line], 0)

    gen = along(generates) > 0
    if evicts:
        keep = victims.survivors(
            along(need), along(jnp.where(runs, view.freed, 0)), view.free_blocks, here
        )
        fits = here & (jnp.arange(here.shape[0]) < keep)
    else:
        # A static batch that decodes keeps even its own unfinished prompts waiting.
        fits = here & (gen | ~(knobs["static_batch"] & jnp.any(gen)))
    grant = _micro_batch(
        knobs, view, along(rows.known - rows.computed), fits, gen, gens_first=not evicts
    )
    grant, waited, holds = _batch_wait(knobs, carried, grant, gen)

    place = jnp.where(here, line, rows.request.shape[0])

    def per_row(values):
        zeros = jnp.zeros(rows.request.shape, values.dtype)
        return zeros.at[place].set(values, mode="drop")

    starts = (grant > 0) & ~(along(runs) > 0)
    tokens, admit = per_row(grant), per_row(starts)
    preempt = runs & ~per_row(fits) if evicts else jnp.zeros_like(runs)
    limited_by = jnp.select(
        [jnp.any(preempt), jnp.any(queue.admit & ~admit)],
        [
            jnp.int32(LimitedBy.PREEMPTING),
            jnp.where(holds, int(LimitedBy.WAIT_TIMER), int(LimitedBy.BUDGET)),
        ],
        queue.limited_by,
    )
    decision = rules.decide(
        view, queue, admit=admit, admit_order=per_row(jnp.cumsum(starts) - 1), grant=tokens,
        kv_tokens=jnp.where(tokens > 0, rows.known, 0), preempt=preempt,
        requeue=jnp.full(rows.request.shape, int(Requeue.KEPT), jnp.int32),
        refuse=jnp.where(refused, int(Refusal.PROMPT_EXCEEDS_ITERATION), int(Refusal.NONE)),
        wake=time.select(gathers, wake, time.never()), limited_by=limited_by,
    )
    return decision, replace(
        carried, context=jnp.where(admit, rows.known, carried.context), waited=waited,
        active=jnp.minimum(
            knobs["max_batch_size"], view.num_running + view.num_waiting - jnp.sum(refused)
        ),
        fitting=jnp.sum(fits),
    )


_EVICTING, _RESERVING = partial(_decide, evicts=True), partial(_decide, evicts=False)


def _steady(knobs: dict, carried: Carried, view: View) -> Steady:
    """A token for each while nobody waits and all contexts are computed."""
    rows = view.rows
    generates = (rows.status != Status.RUNNING) | (rows.computed >= carried.context)
    fits = view.num_running <= knobs["max_num_tokens"]
    return while_nobody_can_enter(view, open_=jnp.all(generates) & fits)


def _advance(knobs: dict, carried: Carried, view: View, turns, running) -> Carried:
    """What whoever looks on sees of the last iteration."""
    return replace(
        carried, active=jnp.minimum(knobs["max_batch_size"], running), fitting=running
    )


def _let_in(knobs, view: View, refused, runs, generates, need, evicts: bool):
    """The walk of the capacity stage over the waiting rows, and whether it has to wait instead.

    Returns the walk, with the run order and behind it who was let in as its `extra`; whether an
    idle engine gathers requests; and until when.
    """
    rows = view.rows
    waits = view.waiting & ~refused
    gathers, wake = _gathers(knobs, view, waits, jnp.sum(refused))
    drains = knobs["static_batch"] & jnp.any(generates)

    def offer(row, queue: rules.Queue) -> rules.Offer:
        room = queue.free
        if evicts:
            # Older rows come first, younger ones make room.
            younger = runs & (rows.queue_order > rows.queue_order[row])
            room += jnp.sum(jnp.where(younger, view.freed, 0))
            room -= jnp.sum(jnp.where(runs & ~younger, need, 0))
        limited_by = jnp.where(
            need[row] > room, int(LimitedBy.BLOCKS), int(LimitedBy.QUEUE_EMPTY)
        )
        line = queue.extra.at[view.num_running + queue.admitted].set(row, mode="drop")
        return rules.Offer(jnp.int32(0), jnp.int32(0), limited_by, line, blocks=need[row])

    promised = 0 if evicts else jnp.sum(jnp.where(runs, need, 0))
    zeros = jnp.zeros_like(rows.held)
    closed = jnp.select(
        [gathers, drains & jnp.any(waits)],
        [int(LimitedBy.WAIT_TIMER), int(LimitedBy.BATCH_RUNNING)],
        int(LimitedBy.QUEUE_EMPTY),
    )
    status = jnp.where(refused, int(Status.FREE), rows.status)
    queue = rules.admit_in_order(
        replace(view, rows=replace(rows, status=status)),
        rules.start_queue(
            # This stage knows no tokens.
            view, budget=1, seats=knobs["max_batch_size"] - view.num_running,
            free=view.free_blocks - promised, grant=zeros, kv_tokens=zeros, limited_by=closed,
            extra=view.running,
        ),
        offer,
        ~(gathers | drains),
    )
    return queue, gathers, wake


def _gathers(knobs, view: View, waits, refused):
    """Whether nothing runs and the batch may still become fuller; until when."""
    rows, limit = view.rows, knobs["batch_wait_timeout_ms"]
    last = jnp.iinfo(jnp.int32).max
    oldest = jnp.argmin(jnp.where(waits, rows.queue_order, last))
    arrived = Time(rows.queued.seconds[oldest], rows.queued.nanoseconds[oldest])
    until = time.add(
        arrived, Time(jnp.int32(limit // 1000), jnp.int32(limit % 1000 * 1_000_000))
    )
    waiting = view.num_waiting - refused
    fresh = ~jnp.any(waits & (rows.status != Status.WAITING))
    few = (waiting > 0) & (waiting < knobs["max_batch_size"])
    return (view.num_running == 0) & few & fresh & time.before(view.clock, until), until


def _by_arrival(rows, line: Int[Array, "S"]) -> Int[Array, "S"]:
    """The rows of the line, oldest first: a sort only if one started before an older one."""
    keys = jnp.where(line != NO_ROW, rows.queue_order[line], jnp.iinfo(jnp.int32).max)
    return lax.cond(
        jnp.any(keys[1:] < keys[:-1]), lambda: line[jnp.argsort(keys)], lambda: line
    )


def _micro_batch(knobs, view: View, left, fits, gen, *, gens_first: bool):
    """Tokens along the line; the scan stops at the first that does not fit the budget.

    Prompts that may be chunked cost nothing in the scan and share what it leaves.
    """
    budget, chunked = knobs["max_num_tokens"], knobs["enable_chunked_prefill"]
    whole = jnp.where(chunked, 0, jnp.minimum(left, budget))
    gens = jnp.where(fits & gen, 1, 0)
    contexts = jnp.where(fits & ~gen, whole, 0)
    if gens_first:
        end = jnp.where(gen, jnp.cumsum(gens), jnp.sum(gens) + jnp.cumsum(contexts))
    else:
        end = jnp.cumsum(gens + contexts)
    takes = fits & (end <= budget)
    scanned = jnp.where(takes, gens + contexts, 0)
    want = jnp.where(takes & ~gen & chunked, left, 0)
    capacity = budget - jnp.sum(scanned)
    unit = jnp.where(
        knobs["chunk_unit_size"] > 0, knobs["chunk_unit_size"], view.system.block_size
    )

    def share():
        return lax.cond(
            knobs["equal_progress"], lambda: equal_progress(want, capacity, unit),
            lambda: first_come(want, capacity, unit),
        )

    return scanned + lax.cond(jnp.sum(want) <= capacity, lambda: want, share)


def _batch_wait(knobs, carried: Carried, grant, gen):
    """Hold prompts back beside decodes until enough came together or it took too long."""
    prompts, decodes = jnp.where(gen, 0, grant), jnp.where(gen, grant, 0)
    mixed = jnp.any(prompts > 0) & jnp.any(decodes > 0)
    short = jnp.sum(grant) < carried.enough
    holds = mixed & short & (carried.waited < knobs["batch_wait_timeout_iters"])
    waited = jnp.where(mixed, jnp.where(holds, carried.waited + 1, 0), carried.waited)
    return jnp.where(holds, decodes, grant), waited, holds
