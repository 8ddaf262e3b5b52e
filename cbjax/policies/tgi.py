"""TGI's router: KV reserved to the end, prefills that interrupt decoding or are mixed in chunks.

Nothing is ever preempted: a request owns KV for prompt and output when it is admitted, and the
first that does not fit blocks the queue. Without chunks (v2, or v3 with chunking off) an iteration
is either the prefill of new requests, for which all others stand still, or one decode of all; two
knobs bound how frequently a prefill may interrupt. With chunks (v3) both share an iteration. With
prefix caching (v3) a prompt can be found once its request has ended; outputs never can.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import rules, runlist, sharing
from cbjax.core.control import when
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy, Refusal
from cbjax.core.receive import leave_behind
from cbjax.core.rows import Status
from cbjax.core.sharing import Shared
from cbjax.core.steady import Steady, while_nobody_can_enter
from cbjax.core.view import View


def tgi(
    version: str = "v3",
    max_batch_prefill_tokens: int = 4096,
    max_batch_total_tokens: int = 0,
    max_batch_size: int = 128,
    max_concurrent_requests: int = 128,
    max_input_tokens: int = 0,
    waiting_served_ratio: float = 0.3,
    max_waiting_tokens: int = 20,
    prefill_chunking: bool = True,
    default_generation_length: int = 0,
    prefix_caching: bool = False,
) -> Policy:
    """TGI with its own knobs, names and defaults; its `max_total_tokens` is `max_length`.

    Args:
        version: "v2": prompt and output are each charged in whole blocks against a token total;
            "v3": the block allocator is the limit, and prompts may be split.
        max_batch_prefill_tokens: prompt tokens of an iteration, rounded up to whole blocks; with
            chunks, decodes count as well.
        max_batch_total_tokens: v2 only: the token total; 0 = all that the pool holds.
        max_batch_size: seats. The original has no bound by default; more than
            `max_concurrent_requests` never run.
        max_concurrent_requests: requests inside, running or waiting; more are refused.
        max_input_tokens: longest prompt, longer ones are refused; 0 = all but one of `max_length`.
        waiting_served_ratio: without chunks: as many must wait, as a share of those that run,
            before a prefill interrupts them.
        max_waiting_tokens: without chunks: decodes after which that share no longer counts.
        prefill_chunking: v3 only: split prompts and mix them with decodes.
        default_generation_length: 1024 as in the original: KV is reserved for at most so many new
            tokens, and a request that wants more is ended there. 0 = reserve for all and serve all.
        prefix_caching: v3 only: whole blocks of the prompts of ended requests are found again. The
            original has it on by default; here it needs token ids, so it is a choice.

    Raises:
        ValueError: a knob is out of range, or has no meaning in this version.

    Source: text-generation-inference 3.3.7 of 2026-01, `backends/v2` and `backends/v3` (queue,
    backend) and the model server's chunk rule.
    """
    require_positive(
        max_batch_prefill_tokens=max_batch_prefill_tokens, max_batch_size=max_batch_size,
        max_concurrent_requests=max_concurrent_requests,
    )
    if version not in ("v2", "v3"):
        raise ValueError(f"version = {version!r}: choose one of ['v2', 'v3']")
    for name, value in (
        ("max_batch_total_tokens", max_batch_total_tokens), ("max_input_tokens", max_input_tokens),
        ("waiting_served_ratio", waiting_served_ratio), ("max_waiting_tokens", max_waiting_tokens),
        ("default_generation_length", default_generation_length),
    ):
        if value < 0:
            raise ValueError(f"{name} = {value}: give 0 or more")
    if version == "v3" and max_batch_total_tokens:
        raise ValueError(
            f"max_batch_total_tokens = {max_batch_total_tokens}: in v3 the pool is the limit and "
            "this is measured, not given; set the number of KV blocks instead"
        )
    if version == "v2" and prefix_caching:
        raise ValueError("prefix_caching = True: v2 has none; choose version = 'v3' or turn it off")
    chunks = version == "v3" and prefill_chunking
    return Policy(
        knobs=dict(
            max_batch_prefill_tokens=max_batch_prefill_tokens,
            max_batch_total_tokens=max_batch_total_tokens, max_batch_size=max_batch_size,
            max_concurrent_requests=max_concurrent_requests, max_input_tokens=max_input_tokens,
            waiting_served_ratio=float(waiting_served_ratio), max_waiting_tokens=max_waiting_tokens,
            default_generation_length=default_generation_length, rounds=version == "v2",
        ),
        name="tgi", init=_init_mixed if chunks else _init_alternating,
        decide=_mixed if chunks else _alternating, steady=_steady,
        advance=None if chunks else _advance, seats="max_batch_size",
        budget="max_batch_prefill_tokens", traits=Traits(
            whole_prompts=not chunks, shares=prefix_caching, register_at="finish",
            registers_ended="prompt",
        ),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Loop:
    """Where the loop over a batch stands."""

    waiting_tokens: Int[Array, ""]  # 1 after a prefill, one more with each decode
    must_decode: Bool[Array, ""]  # a prefill has just interrupted: a decode comes first


def _init_mixed(knobs: dict, limits: Limits, system: System) -> tuple:
    longest = int(system.max_length)
    if int(knobs["max_batch_size"]) > limits.tokens:
        raise ValueError(
            f"max_batch_size = {knobs['max_batch_size']} exceeds limits.tokens = {limits.tokens}: "
            "one token of every running request must fit an iteration; raise the limit or lower it"
        )
    if int(knobs["max_input_tokens"]) >= longest:
        raise ValueError(
            f"max_input_tokens = {knobs['max_input_tokens']} is not below max_length = {longest}: "
            "lower it, or give 0 for all but one"
        )
    return ()


def _init_alternating(knobs: dict, limits: Limits, system: System) -> Loop:
    _init_mixed(knobs, limits, system)
    longest, pool = int(system.max_length), int(system.num_blocks) * int(system.block_size)
    prompt = int(knobs["max_input_tokens"]) or longest - 1
    if int(knobs["max_batch_prefill_tokens"]) < prompt:
        raise ValueError(
            f"max_batch_prefill_tokens = {knobs['max_batch_prefill_tokens']} is below the longest "
            f"prompt, max_input_tokens = {prompt}, although prompts are not split: raise it, or "
            "lower max_input_tokens"
        )
    total = int(knobs["max_batch_total_tokens"])
    if total and not longest <= total <= pool:
        raise ValueError(
            f"max_batch_total_tokens = {total}: give max_length = {longest} at least and the "
            f"{pool} tokens of the pool at most, or 0 for the pool"
        )
    return Loop(waiting_tokens=jnp.int32(1), must_decode=jnp.bool_(False))


def _alternating(knobs: dict, loop: Loop, view: View):
    """Either a prefill of new requests or a decode of all the others."""
    view, refuse = _door(knobs, view)
    idle = view.num_running == 0
    block_size = view.system.block_size
    waited = loop.waiting_tokens >= knobs["max_waiting_tokens"]
    # In 32-bit floats, as in the original.
    share = view.num_running.astype(jnp.float32) * jnp.float32(knobs["waiting_served_ratio"])
    least = jnp.where(idle | waited, 0, jnp.floor(share).astype(jnp.int32))
    asks = (idle | ~loop.must_decode) & (view.num_waiting >= least)
    total = jnp.where(
        knobs["max_batch_total_tokens"] > 0, knobs["max_batch_total_tokens"],
        view.system.num_blocks * block_size,
    ) - jnp.sum(view.in_run_order(view.rows.held)) * block_size
    prefill = _whole(knobs["max_batch_prefill_tokens"], block_size)

    def offer(row, queue: rules.Queue) -> rules.Offer:
        pool, prompts, charged = queue.extra
        ask = _ask(knobs, view, row, pool)
        rounds, tokens = knobs["rounds"], ask.tokens
        prompts += jnp.where(rounds, _whole(tokens, block_size), tokens)
        charged += jnp.where(rounds, _whole(tokens, block_size) + _whole(ask.new, block_size), 0)
        # Alone, it may exceed the total by what the rounding adds: else it would wait for ever.
        over = rounds & (charged > total) & ~(idle & (queue.admitted == 0))
        limited_by = jnp.select(
            [(prompts > prefill) | (tokens > queue.budget), over | (ask.blocks > queue.free)],
            [int(LimitedBy.BUDGET), int(LimitedBy.BLOCKS)],
            int(LimitedBy.QUEUE_EMPTY),
        )
        return rules.Offer(
            tokens, ask.owned, limited_by, blocks=ask.blocks,
            take=lambda extra: (ask.take(extra[0]), prompts, charged),
        )

    nothing = jnp.zeros_like(view.rows.held)
    queue = rules.admit_in_order(
        view,
        rules.start_queue(
            view, budget=view.iteration_tokens, seats=knobs["max_batch_size"] - view.num_running,
            free=view.free_blocks, grant=nothing, kv_tokens=nothing,
            extra=(_pool(view), jnp.int32(0), jnp.int32(0)),
        ),
        offer, asks,
    )
    # Fewer than asked for: they stay in the queue.
    prefills = asks & (queue.admitted > 0) & (queue.admitted >= least)
    waits = jnp.where(
        asks & (queue.admitted >= least), queue.limited_by,
        jnp.where(idle | ~loop.must_decode, int(LimitedBy.WAIT_TIMER), int(LimitedBy.FREEZE)),
    )
    decision = rules.decide(
        view, queue, admit=queue.admit & prefills, refuse=refuse,
        grant=jnp.where(prefills, queue.grant, view.per_row(jnp.where(view.seated, 1, 0))),
        kv_tokens=jnp.where(prefills, queue.kv_tokens, 0),
        limited_by=jnp.where(view.num_waiting > 0, waits, int(LimitedBy.QUEUE_EMPTY)),
        shared=jax.tree.map(
            lambda after, before: jnp.where(prefills, after, before), queue.extra[0], _pool(view)
        ),
    )
    return decision, Loop(
        waiting_tokens=jnp.where(prefills | idle, 1, loop.waiting_tokens + 1),
        # The first prefill of a batch may be followed by another, a later one may not.
        must_decode=prefills & ~idle,
    )


def _steady(knobs: dict, state: Loop | tuple, view: View) -> Steady:
    """A token for each while nobody waits, until one has had what is reserved for it."""
    most = knobs["default_generation_length"]
    made = jnp.max(view.in_run_order(view.rows.known - view.rows.prompt))
    says = while_nobody_can_enter(view)
    left = jnp.where(most > 0, most - made, says.turns)
    return replace(says, turns=jnp.minimum(says.turns, left))


def _advance(knobs: dict, loop: Loop, view: View, turns, running) -> Loop:
    """One more with each decode."""
    return Loop(loop.waiting_tokens + turns, jnp.bool_(False))


def _mixed(knobs: dict, state: tuple, view: View):
    """Decodes, the rest of split prompts, and new prompts in one iteration."""
    view, refuse = _door(knobs, view)
    known = view.in_run_order(view.rows.known)
    pending = known - view.in_run_order(view.rows.computed)
    prompts = (pending > 1) | (known == view.in_run_order(view.rows.prompt))
    prompts &= view.seated
    most = knobs["max_batch_prefill_tokens"]
    # From the last one backwards, and at least one token each.
    rest = jnp.where(prompts, pending, 0)[::-1]
    chunks = rules.fill_in_order(rest, most - view.num_running + 1)[::-1]
    grant = jnp.where(prompts, jnp.maximum(chunks, 1), jnp.where(view.seated, 1, 0))
    current = jnp.sum(grant)
    left = _whole(jnp.maximum(most - current, 0), view.system.block_size)

    def offer(row, queue: rules.Queue) -> rules.Offer:
        ask = _ask(knobs, view, row, queue.extra)
        lacks = ask.blocks > queue.free
        limited_by = jnp.where(lacks, int(LimitedBy.BLOCKS), int(LimitedBy.QUEUE_EMPTY))
        return rules.Offer(
            jnp.minimum(ask.tokens, queue.budget), ask.owned, limited_by, blocks=ask.blocks,
            take=ask.take,
        )

    queue = rules.admit_in_order(
        view,
        rules.start_queue(
            view, budget=jnp.minimum(left, view.iteration_tokens - current),
            seats=knobs["max_batch_size"] - view.num_running, free=view.free_blocks,
            grant=view.per_row(grant), kv_tokens=jnp.zeros_like(view.rows.held), extra=_pool(view),
        ),
        offer, True,
    )
    return rules.decide(view, queue, refuse=refuse, shared=queue.extra), state


def _whole(tokens, block_size):
    """Rounded up to whole blocks."""
    return blocks_for(tokens, block_size) * block_size


def _pool(view: View) -> Shared | None:
    """The pool as a decision finds it, under prefix caching."""
    return None if view.blocks is None else sharing.untouched(view.blocks, view.rows.held)


@dataclass(frozen=True)
class _Ask:
    """What a waiting request asks for."""

    tokens: Int[Array, ""]  # to compute
    new: Int[Array, ""]  # most output tokens
    owned: Int[Array, ""]  # positions it must own
    blocks: Int[Array, ""]  # free blocks that this takes
    take: Callable[[Shared | None], Shared | None]  # gives them to it


def _ask(knobs: dict, view: View, row, pool: Shared | None) -> _Ask:
    block_size, known = view.system.block_size, view.rows.known[row]
    most = knobs["default_generation_length"]
    new = view.rows.max_tokens[row] - (known - view.rows.prompt[row])
    new = jnp.where(most > 0, jnp.minimum(new, most), new)
    # Nothing attends to the last token.
    owned = known + new - 1
    blocks = blocks_for(owned, block_size)
    if pool is None:
        return _Ask(known, new, owned, blocks, lambda pool: pool)
    found, hits, free_hits = sharing.hits(pool, view.token_ids, row, known, block_size)

    def take(pool: Shared | None) -> Shared | None:
        assert pool is not None
        return sharing.grow(
            sharing.attach(pool, row, found, hits, block_size), row, blocks - hits
        )

    return _Ask(known - hits * block_size, new, owned, blocks - hits + free_hits, take)


def _door(knobs: dict, view: View) -> tuple[View, Int[Array, "P"]]:
    """Turn away what is too long or too much, end what has had its share; the view without them."""
    rows = view.rows
    running = rows.status == Status.RUNNING
    longest = jnp.where(
        knobs["max_input_tokens"] > 0, knobs["max_input_tokens"], view.system.max_length - 1
    )
    too_long = view.waiting & (rows.prompt > longest)
    most = knobs["default_generation_length"]
    cut = running & (most > 0) & (rows.known - rows.prompt >= most)
    least = jnp.iinfo(jnp.int32).min
    inside = view.waiting & ~too_long
    excess = (
        view.num_running - jnp.sum(cut) + jnp.sum(inside) - knobs["max_concurrent_requests"]
    )

    def newest_leaves(carry):
        kept, excess = carry
        newest = jnp.argmax(jnp.where(kept, rows.queue_order, least))
        return kept.at[newest].set(False), excess - 1

    kept, _ = lax.while_loop(lambda carry: carry[1] > 0, newest_leaves, (inside, excess))
    refuse = jnp.select(
        [cut, too_long, inside & ~kept],
        [int(Refusal.CUT), int(Refusal.INPUT_TOO_LONG), int(Refusal.OVERLOADED)],
        int(Refusal.NONE),
    )

    def without(view: View) -> View:
        gone = refuse != Refusal.NONE
        blocks = view.blocks
        if blocks is not None:
            leaves = partial(leave_behind, rows, view.token_ids, view.system.block_size)
            blocks = sharing.release(blocks, cut, rows.held, view.running, leaves)
        return replace(
            view,
            rows=replace(
                rows, status=jnp.where(gone, int(Status.FREE), rows.status),
                held=jnp.where(cut, 0, rows.held),
            ),
            blocks=blocks,
            running=runlist.remove(view.running, cut),
            num_running=view.num_running - jnp.sum(cut),
            free_blocks=view.free_blocks + jnp.sum(jnp.where(cut, view.freed, 0))
            if blocks is None
            else blocks.free,
            num_waiting=view.num_waiting - jnp.sum(gone & ~cut),
        )

    return when(jnp.any(refuse != Refusal.NONE), without, view), refuse.astype(jnp.int32)
