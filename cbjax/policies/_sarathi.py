"""The rules of the Sarathi-Serve repository's schedulers: passes over the rows, and their order."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import rules
from cbjax.core.decision import Decision, Requeue
from cbjax.core.limits import blocks_for
from cbjax.core.reasons import LimitedBy, Refusal
from cbjax.core.rows import Status
from cbjax.core.steady import UNBOUNDED, Steady, while_nobody_can_enter
from cbjax.core.view import View

MOST_STAGES = 32  # of a chunking schedule
_FRONT = -(2**30)  # queue keys before all others
_LAST = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carried:
    """What the schedulers carry from iteration to iteration."""

    watermark: Int[Array, ""]  # blocks that must stay free when a request is admitted
    chunks: Int[Array, "K"]  # chunk size of each stage, K = MOST_STAGES; 0 without a schedule
    decode_turn: Bool[Array, ""]  # simple chunking: whose turn it is


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Served:
    """The running rows, in run order, after a pass."""

    grant: Int[Array, "S"]
    kv_tokens: Int[Array, "S"]
    stays: Bool[Array, "S"]
    free: Int[Array, ""]

    def masked(self, used: Bool[Array, ""], view: View) -> "_Served":
        """The pass if it is used, otherwise as if nobody had been looked at."""
        return _Served(
            jnp.where(used, self.grant, 0), jnp.where(used, self.kv_tokens, 0),
            jnp.where(used, self.stays, view.seated), jnp.where(used, self.free, view.free_blocks),
        )


@dataclass(frozen=True)
class Rules:
    """One scheduler's `decide`; its fields are structure, so equal ones share a program."""

    scheduler: str
    dynamic: bool
    faithful: bool

    @property
    def whole_prompts(self) -> bool:
        """Whether a prompt is computed in one iteration."""
        return self.scheduler not in ("sarathi", "simple_chunking")

    @property
    def reserves(self) -> bool:
        """Whether KV is owned for the longest sequence from the start."""
        return self.scheduler in ("orca", "faster_transformer")

    def __call__(self, knobs: dict, carried: Carried, view: View) -> tuple[Decision, Carried]:
        return getattr(self, f"_{self.scheduler}")(knobs, carried, view)

    def steady(self, knobs, carried: Carried, view: View) -> Steady:
        """A token for each; every decode asks for a free block, whether or not it needs one."""
        fixed = self.scheduler == "faster_transformer"
        says = while_nobody_can_enter(view, spare=0 if self.reserves else 1)
        if not fixed:
            return says
        waits = jnp.where(view.num_waiting > 0, int(LimitedBy.BATCH_RUNNING), 0)
        # Who is too long is refused even while the batch runs, once it is seen.
        return replace(
            says, turns=jnp.int32(UNBOUNDED), through=jnp.bool_(True), limited_by=waits
        )

    def advance(self, knobs, carried: Carried, view: View, turns, running) -> Carried:
        """Without prompts it is always the decodes' turn."""
        return replace(carried, decode_turn=jnp.bool_(False))

    def _sarathi(self, knobs, carried: Carried, view: View):
        decodes = _decodes(view)
        served = self._decode_pass(view, decodes)
        prefills = view.seated & ~decodes & served.stays
        grant = served.grant + self._running_chunks(
            knobs, carried, view, prefills, jnp.sum(served.grant)
        )
        lost = view.seated & ~served.stays
        preempts = jnp.any(lost)
        served = replace(served, grant=grant)
        if self.faithful:
            view, open_ = _with_victims_waiting(view, view.per_row(lost)), jnp.bool_(True)
        else:
            open_ = ~preempts
        closed = jnp.where(preempts, int(LimitedBy.PREEMPTING), int(LimitedBy.QUEUE_EMPTY))
        queue, refuse = self._admit(knobs, carried, view, served, open_, closed)
        return self._decision(view, queue, refuse, served), carried

    def _simple_chunking(self, knobs, carried: Carried, view: View):
        decodes = _decodes(view)
        served = self._decode_pass(view, decodes)
        prefill_turn = ~carried.decode_turn
        if not self.faithful:
            prefill_turn |= ~jnp.any(served.grant > 0)
        first = served.masked(carried.decode_turn, view)
        prefills = view.seated & ~decodes & first.stays & prefill_turn
        grant = self._running_chunks(knobs, carried, view, prefills, jnp.int32(0))
        ran = jnp.any(grant > 0)
        open_ = prefill_turn & ~ran & jnp.all(first.stays == view.seated)
        start = replace(served.masked(jnp.bool_(False), view), grant=grant)
        waits = jnp.where(view.num_waiting > 0, int(LimitedBy.FREEZE), int(LimitedBy.QUEUE_EMPTY))
        queue, refuse = self._admit(
            knobs, carried, view, start, open_, jnp.where(open_, int(LimitedBy.QUEUE_EMPTY), waits)
        )
        prefilled = ran | self._acted(queue, refuse)
        served = served.masked(carried.decode_turn | ~prefilled, view)
        queue = _add_running(queue, view, served)
        decision = self._decision(view, queue, refuse, served)
        if self.faithful:
            # An iteration may be empty because it was the decodes' turn.
            decision = replace(
                decision, wake=jax.tree.map(
                    lambda now, never: jnp.where(carried.decode_turn, now, never),
                    view.clock, decision.wake,
                ),
            )
        return decision, replace(carried, decode_turn=prefilled)

    def _vllm(self, knobs, carried: Carried, view: View):
        decodes = _decodes(view)
        # Unfinished is only who exceeded the budget when it was computed again.
        grant = rules.fill_in_order(
            jnp.where(view.seated & ~decodes, _left(view), 0), self._budget(knobs, view)
        )
        served = self._decode_pass(view, decodes)
        start = replace(served.masked(jnp.bool_(False), view), grant=grant)
        queue, refuse = self._admit(
            knobs, carried, view, start, jnp.bool_(True), jnp.int32(LimitedBy.QUEUE_EMPTY)
        )
        served = served.masked(~(jnp.any(grant > 0) | self._acted(queue, refuse)), view)
        queue = _add_running(queue, view, served)
        return self._decision(view, queue, refuse, served), carried

    def _orca(self, knobs, carried: Carried, view: View):
        return self._reserved(knobs, carried, view, jnp.bool_(True))

    def _faster_transformer(self, knobs, carried: Carried, view: View):
        return self._reserved(knobs, carried, view, view.num_running == 0)

    def _reserved(self, knobs, carried: Carried, view: View, open_):
        """One token of each that runs, and whole prompts while `open_`."""
        served = _Served(
            jnp.where(view.seated, 1, 0), jnp.zeros_like(view.running), view.seated,
            view.free_blocks,
        )
        waits = jnp.where(view.num_waiting > 0, int(LimitedBy.BATCH_RUNNING), 0)
        closed = jnp.where(open_, int(LimitedBy.QUEUE_EMPTY), waits)
        queue, refuse = self._admit(knobs, carried, view, served, open_, closed)
        return self._decision(view, queue, refuse, served), carried

    def _acted(self, queue: rules.Queue, refuse) -> Bool[Array, ""]:
        """Whether the waiting requests took the iteration."""
        acted = queue.admitted > 0
        return acted | jnp.any(refuse != 0) if self.faithful else acted

    def _longest(self, knobs, view: View):
        return jnp.where(knobs["max_model_len"] > 0, knobs["max_model_len"], view.system.max_length)

    def _budget(self, knobs, view: View):
        """Most tokens of an iteration of whole prompts."""
        most = view.iteration_tokens
        if self.scheduler != "vllm":
            return jnp.int32(most)
        asked = jnp.where(knobs["max_batched_tokens"] > 0, knobs["max_batched_tokens"], most)
        return jnp.minimum(jnp.minimum(asked, self._longest(knobs, view)), most)

    def _decode_pass(self, view: View, decodes: Bool[Array, "S"]) -> _Served:
        """A token for each decode; while no block is free the last in line goes, prefills too.

        A free block is asked for even by those that need none. Victims are always the last ones
        of the run order, so two running sums say how many stay.
        """
        known, held = view.in_run_order(view.rows.known), view.in_run_order(view.rows.held)
        freed = view.in_run_order(view.freed)
        lacks = jnp.maximum(blocks_for(known, view.system.block_size) - held, 0)
        need = jnp.where(decodes, lacks, 0)
        before = rules.exclusive_sum(need)
        asks = jnp.where(decodes, before + 1, 0)

        def some():
            must = lax.cummax(asks)
            if not self.faithful:
                # With nobody left to preempt, who needs no block goes on.
                others = jnp.concatenate([jnp.zeros(1, must.dtype), must[:-1]])
                must = jnp.maximum(others, jnp.where(decodes, before + need, 0))
            fits = must + jnp.cumsum(freed) <= view.free_blocks + jnp.sum(freed)
            return jnp.sum(view.seated & fits)

        # Nearly always all stay.
        keep = lax.cond(jnp.max(asks) <= view.free_blocks, lambda: jnp.sum(view.seated), some)
        stays = view.seated & (jnp.arange(need.shape[0]) < keep)
        runs = decodes & stays
        change = jnp.where(stays, -need, freed)
        return _Served(
            jnp.where(runs, 1, 0), jnp.where(runs, known, 0), stays,
            view.free_blocks + jnp.sum(change),
        )

    def _size(self, knobs, carried: Carried, progress):
        """The budget of an iteration, as a prompt with that progress sees it."""
        if not self.dynamic:
            return knobs["chunk_size"]
        each = blocks_for(knobs["chunk_schedule_max_tokens"], knobs["chunk_schedule_stages"])
        return carried.chunks[jnp.minimum(progress // each, MOST_STAGES - 1)]

    def _running_chunks(self, knobs, carried: Carried, view: View, prefills, used):
        """Chunks of the unfinished prompts, in run order."""
        want = jnp.where(prefills, _left(view), 0)
        if not self.dynamic:
            return rules.fill_in_order(want, knobs["chunk_size"] - used)
        size = self._size(knobs, carried, view.in_run_order(view.rows.computed))

        def one(carry):
            grant, used, waits = carry
            entry = jnp.argmax(waits)
            tokens = jnp.clip(size[entry] - used, 0, want[entry])
            return grant.at[entry].set(tokens), used + tokens, waits.at[entry].set(False)

        grant, *_ = lax.while_loop(
            lambda carry: jnp.any(carry[2]), one, (jnp.zeros_like(want), used, want > 0)
        )
        return grant

    def _admit(self, knobs, carried: Carried, view: View, served: _Served, open_, closed):
        """Waiting requests in queue order until the first that may not; too long ones are refused.

        Returns:
            The queue after the walk, and the refusals.
        """
        rows, longest = view.rows, self._longest(knobs, view)
        length = rows.known if self.faithful else rows.prompt
        limit = self._budget(knobs, view) if self.scheduler == "vllm" else longest
        too_long = view.waiting & (length > limit)
        used = jnp.sum(served.grant)
        most = jnp.max(carried.chunks) if self.dynamic else knobs.get("chunk_size")
        if self.whole_prompts:
            most = self._budget(knobs, view)

        def offer(row, queue: rules.Queue) -> rules.Offer:
            known, computed = rows.known[row], rows.computed[row]
            counted = queue.extra
            if self.whole_prompts:
                tokens, counts = known - computed, known
                fits = known <= most - counted
                if not self.faithful:
                    alone = (known > most) & (counted == 0)
                    tokens, fits = jnp.where(alone, most, tokens), fits | alone
            else:
                # Who is not reset yet counts from its old progress; a decode has none left.
                left = (rows.prompt[row] if self.faithful else known) - computed
                size = self._size(knobs, carried, computed)
                tokens = counts = jnp.clip(size - counted, 0, jnp.maximum(left, 0))
                fits = tokens > 0
            owns = self._owned(view, row, longest)
            lacks = blocks_for(owns, view.system.block_size)
            spared = carried.watermark
            if not self.faithful:
                spared = jnp.where(queue.seats < knobs["max_num_seqs"], spared, 0)
            limited_by = jnp.select(
                [counted >= most, lacks > queue.free, lacks + spared > queue.free, ~fits],
                [
                    int(LimitedBy.BUDGET), int(LimitedBy.BLOCKS), int(LimitedBy.WATERMARK),
                    int(LimitedBy.BUDGET),
                ],
                int(LimitedBy.QUEUE_EMPTY),
            )
            return rules.Offer(tokens, owns, limited_by, counted + counts)

        kept = jnp.sum(served.stays)
        queue = rules.admit_in_order(
            view,
            rules.start_queue(
                view, budget=most - used, seats=knobs["max_num_seqs"] - kept, free=served.free,
                grant=view.per_row(served.grant), kv_tokens=view.per_row(served.kv_tokens),
                limited_by=closed, extra=used,
            ),
            offer, open_ & ~too_long,
        )
        rest = view.waiting & ~too_long & ~queue.admit
        stop = jnp.min(jnp.where(rest, rows.queue_order, _LAST))
        reached = too_long & open_ & (rows.queue_order < stop)
        reason = jnp.where(
            length > longest, int(Refusal.PROMPT_TOO_LONG), int(Refusal.PROMPT_EXCEEDS_ITERATION)
        )
        return queue, jnp.where(reached, reason, int(Refusal.NONE)).astype(jnp.int32)

    def _owned(self, view: View, row, longest):
        """Positions that an admitted request owns at once."""
        if not self.reserves:
            return view.rows.known[row]
        if self.faithful:
            return longest
        # A pool below one reservation serves one request at a time.
        whole = jnp.maximum(longest, view.rows.prompt[row] + view.rows.max_tokens[row])
        return jnp.minimum(whole, view.system.num_blocks * view.system.block_size)

    def _decision(self, view: View, queue: rules.Queue, refuse, served: _Served) -> Decision:
        preempt = view.per_row(view.seated & ~served.stays)
        more = {}
        if self.faithful:
            # Who made room in an iteration that computed nothing is not reset, as if never evicted.
            nothing = ~jnp.any(queue.grant > 0)
            place = jnp.where(nothing, int(Requeue.SWAP_OUT), int(Requeue.FRONT))
            more = dict(
                requeue=jnp.full(preempt.shape, place, jnp.int32),
                swap_in=queue.admit & (view.rows.status == Status.SWAPPED),
            )
        return rules.decide(view, queue, preempt=preempt, refuse=refuse, **more)


def _decodes(view: View) -> Bool[Array, "S"]:
    """Running rows whose prompt is computed; one token is left of those always."""
    computed = view.in_run_order(view.rows.computed)
    return view.seated & (_left(view) == 1) & (computed >= view.in_run_order(view.rows.prompt))


def _left(view: View) -> Int[Array, "S"]:
    """Tokens that running rows have not computed yet."""
    return view.in_run_order(view.rows.known - view.rows.computed)


def _with_victims_waiting(view: View, lost: Bool[Array, "P"]) -> View:
    """The table as the original sees it: victims wait in front, their old progress not reset."""
    order = view.per_row(jnp.arange(view.running.shape[0], dtype=jnp.int32)) + _FRONT
    rows = view.rows
    return replace(
        view,
        rows=replace(
            rows, status=jnp.where(lost, int(Status.PREEMPTED), rows.status),
            queue_order=jnp.where(lost, order, rows.queue_order),
            held=jnp.where(lost, 0, rows.held),
        ),
    )


def _add_running(queue: rules.Queue, view: View, served: _Served) -> rules.Queue:
    """The queue's grants with those of a pass that was made after the walk."""
    return replace(
        queue, grant=queue.grant + view.per_row(served.grant),
        kv_tokens=jnp.maximum(queue.kv_tokens, view.per_row(served.kv_tokens)),
    )
