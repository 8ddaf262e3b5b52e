"""llama.cpp's server: a fixed number of slots, served in the order of their index.

Every generating slot adds one token, then prompts fill the batch, lowest slot index first. A free
slot goes to whoever waited longest: the slot that remembers most of the prompt, or the one that was
released first. Nothing is reserved where slots share one KV cache, so it may overflow: the original
then ends every request that runs. Here, unless told otherwise, a request starts only when what it
knows fits, and in an overflow the highest slots give their cells back and wait at the front.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core import rules, sharing, time, victims
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy, Refusal
from cbjax.core.rows import Status
from cbjax.core.rules import exclusive_sum
from cbjax.core.view import View
from cbjax.policies import _llama_cpp_slots as memory
from cbjax.policies._llama_cpp_slots import Slots, empty_slots

_AUTO = -1
_AUTO_SLOTS = 4


def llama_cpp(
    n_parallel: int = _AUTO,
    n_batch: int = 2048,
    ctx_size: int = 0,
    kv_unified: bool | None = None,
    cont_batching: bool = True,
    cache_prompt: bool = False,
    slot_prompt_similarity: float = 0.1,
    overflow: str = "defer",
    context_shift: bool = False,
) -> Policy:
    """llama.cpp's server with its own knobs, names and defaults.

    `n_ubatch`, the part of a batch that is computed at a time, decides nothing and is left out.

    Args:
        n_parallel: slots; -1 = 4 slots with one KV cache.
        n_batch: tokens of an iteration, those of generating slots included.
        ctx_size: cells of the KV cache; 0 = the whole pool. Cells are dealt out in whole blocks.
        kv_unified: slots share the cells; otherwise each owns an equal part of them from the start.
            None = shared if `n_parallel` is -1.
        cont_batching: prompts join generating slots; otherwise they wait until none generates.
        cache_prompt: an idle slot keeps its KV for a prompt that begins alike. The original has it
            on by default; here it needs token ids, so it is a choice. Whole blocks are kept and
            reused, nothing is kept outside the slots (`--cache-ram 0`, `--cache-reuse 0`).
        slot_prompt_similarity: share of a prompt that a slot must remember to be chosen for it; 0 =
            never chosen for that. The slot that is chosen otherwise may still remember a part.
        overflow: what happens when shared cells run out and no idle slot can be cleared. "defer":
            the highest slots make room and wait again, and a request starts only when its known
            tokens fit; "abort_all": what fits is computed and then every request that runs ends
            with an error, as in the original.
        context_shift: refused.

    Raises:
        ValueError: a knob is out of range, or context shift is wanted.

    Source: llama.cpp of 2026-10, `tools/server/server-context.cpp`, `common/arg.cpp`.
    """
    refuse_context_shift(context_shift)
    if overflow not in ("defer", "abort_all"):
        raise ValueError(f"overflow = {overflow!r}: choose one of ['defer', 'abort_all']")
    if ctx_size < 0:
        raise ValueError(f"ctx_size = {ctx_size}: give 0 for the whole pool, or a number of cells")
    if not 0.0 <= slot_prompt_similarity <= 1.0:
        raise ValueError(
            f"slot_prompt_similarity = {slot_prompt_similarity}: give a share, 0 <= share <= 1"
        )
    if kv_unified is None:
        kv_unified = n_parallel == _AUTO
    slots = _AUTO_SLOTS if n_parallel == _AUTO else n_parallel
    require_positive(n_parallel=slots, n_batch=n_batch)
    return Policy(
        knobs=dict(
            n_parallel=slots, n_batch=n_batch, ctx_size=ctx_size, kv_unified=kv_unified,
            cont_batching=cont_batching, slot_prompt_similarity=slot_prompt_similarity,
            abort_all=overflow == "abort_all",
        ),
        name="llama_cpp", init=START[cache_prompt], decide=decide, seats="n_parallel",
        budget="n_batch", traits=Traits(shares=cache_prompt, register_at="schedule"),
    )


def refuse_context_shift(wanted: bool) -> None:
    """Raise ValueError if a full context is to be shifted."""
    if wanted:
        raise ValueError(
            "context_shift = True: a full context would drop its middle and move the positions of "
            "what is behind it, so tokens would no longer depend on their own sequence alone; "
            "raise max_length instead"
        )


def _start(knobs: dict, limits: Limits, system: System, *, remembers: bool) -> Slots:
    """Idle slots; each must be able to hold the longest sequence."""
    slots, unified = int(knobs["n_parallel"]), bool(knobs["kv_unified"])
    size, pool = int(system.block_size), int(system.num_blocks)
    blocks = int(knobs["ctx_size"]) // size if int(knobs["ctx_size"]) else pool
    if blocks > pool:
        raise ValueError(
            f"ctx_size = {knobs['ctx_size']} exceeds the {pool * size} cells of the pool: lower it "
            "or give the pool more KV blocks"
        )
    own = blocks if unified else blocks // slots
    if own * size < int(system.max_length) and own < pool:
        raise ValueError(
            f"a slot has {own * size} cells ({blocks * size} for n_parallel = {slots}, "
            f"kv_unified = {unified}), fewer than max_length = {int(system.max_length)}: raise "
            "ctx_size or the pool, lower n_parallel, share the cells, or shorten max_length"
        )
    return empty_slots(limits, remembers)


START = {remembers: partial(_start, remembers=remembers) for remembers in (False, True)}


def decide(knobs: dict, slots: Slots, view: View):
    """Fill idle slots, then serve all of them in the order of their index."""
    rows, block_size = view.rows, view.system.block_size
    count = rows.held.shape[0]
    unified, abort_all = jnp.asarray(knobs["kv_unified"]), jnp.asarray(knobs["abort_all"])
    size = jnp.where(
        knobs["ctx_size"] > 0, knobs["ctx_size"] // block_size, view.system.num_blocks
    )
    beyond = view.system.num_blocks - size
    pool = None if view.blocks is None else sharing.untouched(view.blocks, rows.held)

    slots = slots.release(slots.busy & (rows.status[slots.row] != Status.RUNNING))
    ends = slots.busy & slots.overflowed
    ended = slots.at_rows(ends.astype(jnp.int32), count) > 0
    free = view.free_blocks - beyond + jnp.sum(jnp.where(ended, rows.held, 0))
    if pool is not None:
        slots, pool = memory.clear(slots, pool, ends)
    slots = slots.release(ends)

    # Cells that the known tokens of all that run will take.
    lacking = jnp.maximum(blocks_for(rows.known, block_size) - rows.held, 0)
    queue = _fill_slots(
        knobs, view, slots, pool, free - jnp.sum(slots.along(lacking)), unified & ~abort_all
    )
    slots, pool = queue.extra
    held, computed = rows.held, rows.computed
    if pool is not None:
        held, computed = pool.held, computed + pool.cached
        free = pool.blocks.free - beyond
    held, known, computed = slots.along(held), slots.along(rows.known), slots.along(computed)

    generating = slots.busy & (known - computed == 1) & (known > slots.along(rows.prompt))
    grant = _batch(knobs, slots, known - computed, generating)
    own = jnp.minimum(size // knobs["n_parallel"] * block_size, view.system.max_length)

    def blocks_needed(grant):
        owned = jnp.where(unified, computed + grant, own)
        need = jnp.maximum(blocks_for(owned, block_size) - held, 0)
        return jnp.where(slots.busy & (~unified | (grant > 0)), need, 0)

    need = blocks_needed(grant)
    full = jnp.sum(need) > free
    if pool is not None:
        slots, pool = memory.drop_idle(slots, pool, jnp.sum(need) + beyond)
    keep = victims.survivors(need, held, free, slots.busy)
    stays = slots.busy & (abort_all | (jnp.cumsum(slots.busy) <= keep))
    leaves = slots.busy & ~stays
    grant = jnp.where(
        full & abort_all,
        _what_fits(
            grant, need, free, generating, lambda more: (held + more) * block_size - computed
        ),
        jnp.where(stays, grant, 0),
    )
    need = jnp.where(stays, blocks_needed(grant), 0)
    if pool is not None:
        slots, pool = memory.clear(slots, pool, leaves)
        pool = memory.serve(slots, pool, view, jnp.where(stays, computed + grant, 0), need)

    overflowed = full & abort_all
    order = jnp.sum(leaves) - jnp.cumsum(leaves)  # the highest slot goes first
    decision = rules.decide(
        view, queue, grant=slots.at_rows(grant, count),
        kv_tokens=slots.at_rows(jnp.where(need > 0, (held + need) * block_size, 0), count),
        preempt=slots.at_rows(leaves.astype(jnp.int32), count) > 0,
        preempt_order=slots.at_rows(order.astype(jnp.int32), count),
        refuse=jnp.where(ended, int(Refusal.KV_OVERFLOW), int(Refusal.NONE)), shared=pool,
        limited_by=jnp.where(jnp.any(leaves), int(LimitedBy.PREEMPTING), queue.limited_by),
        # Requests end in the next call, which must not wait for an arrival.
        wake=time.select(overflowed & (jnp.sum(grant) == 0), view.clock, time.never()),
    )
    slots = slots.release(leaves)
    if pool is not None:
        slots = slots.remember(pool)
    return decision, replace(slots, overflowed=overflowed)


def _fill_slots(knobs: dict, view: View, slots: Slots, pool, free, gated) -> rules.Queue:
    """Give idle slots to whoever waits, first come, first served; nothing is computed yet."""
    block_size = view.system.block_size

    def offer(row, queue: rules.Queue) -> rules.Offer:
        slots, pool = queue.extra
        known = view.rows.known[row]
        slot = slots.oldest(knobs["n_parallel"])
        if pool is not None:
            alike = memory.common(slots, pool, view, row)
            slot = memory.choose(
                slots, alike, known, knobs["n_parallel"], knobs["slot_prompt_similarity"]
            )
            # One token at least is computed, so that there are logits.
            hits = jnp.minimum(alike[slot], known - 1) // block_size

        def take(extra):
            slots, pool = extra
            if pool is not None:
                pool = memory.take_up(slots, pool, row, slot, hits, block_size)
            return replace(slots, row=slots.row.at[slot].set(row)), pool

        blocks = blocks_for(known, block_size)
        limited_by = jnp.where(
            gated & (blocks > queue.free), int(LimitedBy.BLOCKS), int(LimitedBy.QUEUE_EMPTY)
        )
        return rules.Offer(jnp.int32(0), jnp.int32(0), limited_by, blocks=blocks, take=take)

    nothing = jnp.zeros_like(view.rows.held)
    return rules.admit_in_order(
        view,
        rules.start_queue(
            view, budget=view.iteration_tokens, seats=jnp.sum(slots.idle(knobs["n_parallel"])),
            free=free, grant=nothing, kv_tokens=nothing, extra=(slots, pool),
        ),
        offer, True,
    )


def _batch(
    knobs: dict, slots: Slots, pending: Int[Array, "S"], generating: Bool[Array, "S"]
) -> Int[Array, "S"]:
    """A token of every generating slot, then prompts, lowest slot first, until it is full."""
    count = jnp.sum(generating)
    prompts = rules.fill_in_order(
        jnp.where(generating, 0, pending), knobs["n_batch"] - count
    )
    return generating + jnp.where(knobs["cont_batching"] | (count == 0), prompts, 0)


def _what_fits(
    grant: Int[Array, "S"], need: Int[Array, "S"], free, generating: Bool[Array, "S"],
    cells: Callable[[Int[Array, "S"]], Int[Array, "S"]],
) -> Int[Array, "S"]:
    """The tokens before the first one without a cell, in the order of the batch.

    Args:
        grant, need: tokens of each slot and the blocks they take.
        free: free blocks.
        generating: slots whose token comes before all prompts.
        cells: tokens that each slot can still add with so many more blocks.
    """

    def before(values):
        first = jnp.where(generating, values, 0)
        return jnp.where(
            generating, exclusive_sum(first), jnp.sum(first) + exclusive_sum(values - first)
        )

    left = free - before(need)
    short = need > left
    fits = jnp.where(short, jnp.minimum(grant, cells(left)), grant)
    return jnp.where(before(short.astype(jnp.int32)) > 0, 0, fits)
