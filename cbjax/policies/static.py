"""Static batching: a batch is formed when the engine is idle and fixed until its last request ends.

The baseline that continuous batching is measured against. Two costs are kept apart because real
systems differ in them: padding (prompts padded to the longest, finished rows computed on) and
delivery (a token at once, or with the whole batch).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from cbjax.core import rules
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW
from cbjax.core.view import View


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """The batch that runs: how many requests it was formed of, and its longest prompt."""

    size: Int[Array, ""]
    longest: Int[Array, ""]


def static(max_batch_size: int = 8, padding: str = "padded", delivery: str = "stream") -> Policy:
    """Static batching of up to `max_batch_size` requests.

    The oldest requests form a batch when nothing runs. Prompts first, each whole (a batch whose
    prompts exceed one iteration takes several), then one token of every request per iteration.
    KV is owned for the whole output from the start.

    Args:
        max_batch_size: most requests in a batch.
        padding: "padded": every prompt costs as much as the longest, a finished request keeps
            computing, and each owns KV for the longest prompt and the longest output of the batch;
            "ragged": only real tokens are computed, a finished request just keeps its seat.
        delivery: "stream": a token reaches the client when it is computed; "at_end": when the
            batch ends.

    Raises:
        ValueError: a knob is out of range.

    Source: request-level batching as in FasterTransformer and as the baseline of Orca (OSDI 2022).
    """
    require_positive(max_batch_size=max_batch_size)
    for name, value, allowed in (
        ("padding", padding, ("padded", "ragged")), ("delivery", delivery, ("stream", "at_end")),
    ):
        if value not in allowed:
            raise ValueError(f"{name} = {value!r}: choose one of {list(allowed)}")
    return Policy(
        knobs=dict(max_batch_size=max_batch_size, padded=padding == "padded"),
        name="static", init=_init, decide=_decide, seats="max_batch_size",
        traits=Traits(
            whole_prompts=True, reserves_output=True,
            deliver_at="token" if delivery == "stream" else "batch_end",
        ),
    )


def _init(knobs: dict, limits: Limits, system: System) -> Batch:
    return Batch(size=jnp.int32(0), longest=jnp.int32(0))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Forming:
    """The batch while the queue is walked."""

    members: Int[Array, "S"]  # rows in queue order
    count: Int[Array, ""]
    longest: Int[Array, ""]
    most_output: Int[Array, ""]


def _decide(knobs: dict, batch: Batch, view: View):
    rows, padded = view.rows, knobs["padded"]
    seats = view.running.shape[0]
    idle = view.num_running == 0

    def length(longest, output):
        return jnp.minimum(longest + output, view.system.max_length)

    def offer(row, queue: rules.Queue) -> rules.Offer:
        forming: _Forming = queue.extra
        prompt, output = rows.prompt[row], rows.max_tokens[row]
        longest = jnp.maximum(forming.longest, prompt)
        most_output = jnp.maximum(forming.most_output, output)
        each = blocks_for(length(longest, most_output), view.system.block_size)
        own = blocks_for(prompt + output, view.system.block_size)
        lacks = jnp.where(
            padded, (forming.count + 1) * each > view.free_blocks, own > queue.free
        )
        grown = _Forming(
            forming.members.at[forming.count].set(row, mode="drop"), forming.count + 1, longest,
            most_output,
        )
        limited_by = jnp.where(lacks, int(LimitedBy.BLOCKS), int(LimitedBy.QUEUE_EMPTY))
        return rules.Offer(jnp.int32(0), prompt + output, limited_by, grown)

    nobody = _Forming(
        jnp.full(seats, NO_ROW, jnp.int32), jnp.int32(0), jnp.int32(0), jnp.int32(0)
    )
    zeros = jnp.zeros_like(rows.held)
    waits = jnp.where(view.num_waiting > 0, int(LimitedBy.BATCH_RUNNING), 0)
    queue = rules.admit_in_order(
        view,
        rules.start_queue(
            view, budget=view.iteration_tokens,
            # One token of each must fit an iteration.
            seats=jnp.minimum(knobs["max_batch_size"], view.iteration_tokens),
            free=view.free_blocks, grant=zeros, kv_tokens=zeros,
            limited_by=jnp.where(idle, int(LimitedBy.QUEUE_EMPTY), waits), extra=nobody,
        ),
        offer,
        idle,
    )
    forming: _Forming = queue.extra
    members = jnp.where(idle, forming.members, view.running)
    batch = Batch(
        size=jnp.where(idle, forming.count, batch.size),
        longest=jnp.where(idle, forming.longest, batch.longest),
    )
    each = jnp.where(padded, length(forming.longest, forming.most_output), queue.kv_tokens)
    grant, extra = _tokens(rows, members, batch, padded, view.iteration_tokens)
    place = jnp.where(members != NO_ROW, members, zeros.shape[0])
    decision = rules.decide(
        view, queue, grant=zeros.at[place].set(grant, mode="drop"),
        kv_tokens=jnp.where(queue.admit, each, 0), extra_tokens=extra,
    )
    return decision, batch


def _tokens(rows, members, batch: Batch, padded, most):
    """Tokens of each member, and the padding computed beside them."""
    member = members != NO_ROW
    prompt = jnp.where(member, rows.prompt[members], 0)
    pending = member & (rows.computed[members] == 0)
    prompts_left = jnp.any(pending)
    want = jnp.where(pending, prompt, 0)
    at_once = jnp.maximum(most // jnp.maximum(batch.longest, 1), 1)
    prefill = jnp.where(
        padded,
        jnp.where(rules.exclusive_sum(pending.astype(jnp.int32)) < at_once, want, 0),
        rules.whole_in_order(want, most),
    )
    grant = jnp.where(prompts_left, prefill, jnp.where(member, 1, 0))
    padding = jnp.where(
        prompts_left,
        jnp.sum(jnp.where(prefill > 0, batch.longest - prefill, 0)),
        batch.size - jnp.sum(member),
    )
    return grant, jnp.where(padded, padding, 0).astype(jnp.int32)
