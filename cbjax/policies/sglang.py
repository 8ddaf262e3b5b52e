"""SGLang's scheduler: prefill first, an estimated reserve for running requests, retraction.

Whenever waiting requests can be admitted, the iteration is a prefill batch and decodes stand still
(in mixed mode they ride along); one request at a time may be left in the middle of its prefill.
Running requests are expected to need a share of their remaining output, `new_token_ratio`, which
falls with every decode step and is set anew when memory runs out and requests are retracted. Rules
as of SGLang 0.5.5 with the radix cache disabled.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import rules, runlist
from cbjax.core.decision import Requeue
from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW, Status
from cbjax.core.view import View
from cbjax.policies import _sglang_ratio as ratios
from cbjax.policies._sglang_admission import CLIP, Adder, Admission, empty_adder
from cbjax.policies._sglang_ratio import Ratio

# Without a radix cache the orders that look at it are first come, first served.
_ORDERS = {"fcfs": 0, "lpm": 0, "dfs-weight": 0, "lof": 1, "random": 2}
_UNBOUNDED = 1 << 30


def sglang(
    max_running_requests: int = 256,
    chunked_prefill_size: int = 4096,
    max_prefill_tokens: int = 16384,
    schedule_policy: str = "fcfs",
    schedule_conservativeness: float = 1.0,
    enable_mixed_chunk: bool = False,
    disable_overlap_schedule: bool = False,
    ignore_eos: bool = False,
    enable_priority_scheduling: bool = False,
    priority_scheduling_preemption_threshold: int = 10,
    schedule_low_priority_values_first: bool = False,
    init_new_token_ratio: float = 0.7,
    min_new_token_ratio_factor: float = 0.14,
    new_token_ratio_decay_steps: int = 600,
    retract_decode_steps: int = 20,
    keep_finished: bool = False,
    check_memory: bool = True,
) -> Policy:
    """SGLang with its own knobs, names and defaults (the first two depend on the device there).

    Args:
        max_running_requests: seats.
        chunked_prefill_size: most prefill tokens of an iteration, a whole number of pages; -1 = no
            bound but the most tokens of an iteration.
        max_prefill_tokens: prefill tokens of an iteration; the first request may exceed them.
        schedule_policy: "fcfs"; "lof" (largest `max_tokens` first); "random"; "lpm" and
            "dfs-weight" are "fcfs" without a radix cache.
        schedule_conservativeness: scales `init_new_token_ratio`.
        enable_mixed_chunk: decodes ride along with a prefill batch.
        disable_overlap_schedule: decide with the results of the last iteration, not of the one
            before it.
        ignore_eos: requests run to `max_tokens`, so admission follows their known ends instead of
            an estimate. A setting of each request there.
        enable_priority_scheduling: more urgent requests first, and in place of running ones.
        priority_scheduling_preemption_threshold: a request makes room if its priority differs by
            more.
        schedule_low_priority_values_first: small numbers are urgent, instead of large ones.
        init_new_token_ratio, min_new_token_ratio_factor, new_token_ratio_decay_steps: where the
            ratio starts, the part of it where it ends, the decode steps between.
        retract_decode_steps: decode steps that a retraction should last for.
        keep_finished: the original's fault: a request that ended keeps its place until the next
            decode step, so it takes a seat, and a batch that was full stays closed for an idle
            iteration in which requests wait.
        check_memory: False is the original's fault: decodes of a mixed batch are admitted without
            memory, a chunk may be empty, and a request that fits the pool but not the estimate
            waits for ever.

    Raises:
        ValueError: a knob is out of range.

    Source: SGLang 0.5.5.post3, `python/sglang/srt/managers/{scheduler,schedule_policy,
    schedule_batch}.py`; recorded decisions of that release. Beyond it: a request that lacks memory
    may take it from less urgent ones, not only one that lacks a seat, and what victims hold counts
    beside their estimate (issue 14872); when a single running request lacks memory, the request in
    the middle of its prefill is retracted.
    """
    require_positive(
        max_running_requests=max_running_requests, max_prefill_tokens=max_prefill_tokens,
        new_token_ratio_decay_steps=new_token_ratio_decay_steps,
    )
    if chunked_prefill_size != -1:
        require_positive(chunked_prefill_size=chunked_prefill_size)
    if schedule_policy not in _ORDERS:
        raise ValueError(
            f"schedule_policy = {schedule_policy!r}: choose one of {list(_ORDERS)}"
        )
    for name, value in (
        ("schedule_conservativeness", schedule_conservativeness),
        ("init_new_token_ratio", init_new_token_ratio),
        ("min_new_token_ratio_factor", min_new_token_ratio_factor),
        ("retract_decode_steps", retract_decode_steps),
        ("priority_scheduling_preemption_threshold", priority_scheduling_preemption_threshold),
    ):
        if value < 0:
            raise ValueError(f"{name} = {value}: give 0 or more")
    if min_new_token_ratio_factor > 1:
        raise ValueError(
            f"min_new_token_ratio_factor = {min_new_token_ratio_factor}: the ratio falls; give 1 "
            "or less"
        )
    if enable_priority_scheduling and (ignore_eos or schedule_policy not in ("fcfs", "lof")):
        raise ValueError(
            f"enable_priority_scheduling with schedule_policy = {schedule_policy!r} and "
            f"ignore_eos = {ignore_eos}: priorities go with 'fcfs' and 'lof', without ignore_eos"
        )
    knobs = dict(
        max_running_requests=max_running_requests, chunked_prefill_size=chunked_prefill_size,
        max_prefill_tokens=max_prefill_tokens, order=_ORDERS[schedule_policy],
        schedule_conservativeness=schedule_conservativeness,
        enable_mixed_chunk=enable_mixed_chunk, ignore_eos=ignore_eos,
        enable_priority_scheduling=enable_priority_scheduling,
        priority_scheduling_preemption_threshold=priority_scheduling_preemption_threshold,
        schedule_low_priority_values_first=schedule_low_priority_values_first,
        init_new_token_ratio=init_new_token_ratio,
        min_new_token_ratio_factor=min_new_token_ratio_factor,
        new_token_ratio_decay_steps=new_token_ratio_decay_steps,
        retract_decode_steps=retract_decode_steps, keep_finished=keep_finished,
        check_memory=check_memory,
    )
    # With overlap one token is computed for nothing behind the last one, and needs KV.
    ahead = not disable_overlap_schedule
    return Policy(
        knobs=knobs, name="sglang", init=_init, decide=_DECIDE[ahead],
        seats="max_running_requests",
        budget="chunked_prefill_size" if chunked_prefill_size > 0 else None,
        traits=Traits(lag=int(ahead), reserves_output=ahead),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carried:
    """What SGLang's scheduler remembers between iterations."""

    ratio: Ratio  # new_token_ratio
    full: Bool[Array, ""]  # batch_is_full: nobody is admitted until the running batch shrinks
    chunked: Int[Array, ""]  # row in the middle of its prefill; NO_ROW
    member: Bool[Array, "P"]  # rows of the running batch
    ghosts: Int[Array, ""]  # members of it that ended and were not yet filtered
    last: Bool[Array, "P"]  # rows of the last iteration's prefill batch, decodes included
    last_size: Int[Array, ""]
    fresh: Bool[Array, "P"]  # of these, rows that now come before the decodes they rode with
    unseen: Int[Array, "P"]  # known tokens that the overlap loop has not seen, or has dropped
    idle: Int[Array, ""]  # iterations since something was computed
    turn: Int[Array, ""]


def _init(knobs: dict, limits: Limits, system: System) -> Carried:
    size, page = int(knobs["chunked_prefill_size"]), int(system.block_size)
    seats = int(knobs["max_running_requests"])
    if size > 0 and size % page:
        raise ValueError(
            f"chunked_prefill_size = {size} is not a multiple of block_size = {page}: a chunk is a "
            "whole number of pages"
        )
    if limits.tokens < max(seats, page):
        raise ValueError(
            f"limits.tokens = {limits.tokens} is below max_running_requests = {seats} or "
            f"block_size = {page}: one token of every request and one page must fit an iteration"
        )
    initial = min(knobs["init_new_token_ratio"] * knobs["schedule_conservativeness"], 1.0)
    nobody = jnp.zeros(limits.rows, bool)
    return Carried(
        ratio=ratios.start(initial, knobs["min_new_token_ratio_factor"]),
        full=jnp.bool_(False), chunked=jnp.int32(NO_ROW), member=nobody, ghosts=jnp.int32(0),
        last=nobody, last_size=jnp.int32(0), fresh=nobody,
        unseen=jnp.zeros(limits.rows, jnp.int32), idle=jnp.int32(2), turn=jnp.int32(0),
    )


def _decide(knobs: dict, carried: Carried, view: View, *, ahead: bool):
    rows = view.rows
    # The original resets the ratio when a turn of its loop has neither work nor results.
    resets = carried.idle >= (2 if ahead else 1)
    carried = replace(
        carried, ratio=jax.tree.map(
            lambda new, old: jnp.where(resets, new, old), ratios.reset(carried.ratio),
            carried.ratio,
        ),
        unseen=jnp.where(rows.status == Status.WAITING, 0, carried.unseen),
    )
    carried, view = _merge(knobs, carried, view)
    tokens = rows.known - carried.unseen
    left = jnp.minimum(rows.max_tokens - (tokens - rows.prompt), CLIP)
    rule = Admission(knobs, view, carried.ratio, tokens, left, carried.member)
    crossing = carried.member & (lax.rem(rows.computed, view.system.block_size) == 0)
    queue, carried, goes = _prefill(knobs, carried, view, rule, crossing)
    adder: Adder = queue.extra
    built = goes | (queue.admitted > 0)
    decode = _decode(knobs, carried, view, tokens, crossing & ~built)

    batch = carried.member & ~adder.victims
    rides = batch & knobs["enable_mixed_chunk"]
    prefills = queue.admit | (goes & (jnp.arange(batch.shape[0]) == carried.chunked))
    decodes = jnp.where(built, rides, decode.stays)
    grant = queue.grant + decodes
    preempt = jnp.where(built, adder.victims, decode.preempt)
    decision = rules.decide(
        view, queue, grant=grant, kv_tokens=jnp.where(grant > 0, rows.computed + grant, 0),
        preempt=preempt, preempt_order=jnp.where(built, adder.order, decode.order),
        requeue=jnp.full(rows.held.shape, int(Requeue.END), jnp.int32),
        running=jnp.where(built, runlist.remove(view.running, preempt), decode.running),
    )
    chunked = jnp.where(built, adder.chunked, decode.chunked)
    last = built & (prefills | rides)
    works = built | jnp.any(decodes)
    before = jnp.sum(carried.member) + carried.ghosts
    shrinks = ~built & (jnp.sum(decode.stays) < before)
    mixed = built & knobs["enable_mixed_chunk"]
    return decision, replace(
        carried,
        ratio=jax.tree.map(
            lambda new, old: jnp.where(built, old, new), decode.ratio, carried.ratio
        ),
        full=carried.full & ~shrinks, chunked=chunked.astype(jnp.int32),
        member=jnp.where(built, batch & ~mixed, decode.stays),
        ghosts=jnp.where(built & ~mixed, carried.ghosts, 0),
        last=last, last_size=jnp.sum(last), fresh=prefills & jnp.any(rides) & built,
        unseen=_unseen(carried, rows, decodes, prefills, chunked, preempt) if ahead
        else carried.unseen,
        idle=jnp.where(works, 0, carried.idle + 1), turn=carried.turn + 1,
    )


def _merge(knobs: dict, carried: Carried, view: View) -> tuple[Carried, View]:
    """The last prefill batch joins the running one, without what ended or is half computed."""
    runs = view.rows.status == Status.RUNNING
    row = jnp.arange(runs.shape[0])
    chunked = jnp.where(jnp.any(runs & (row == carried.chunked)), carried.chunked, NO_ROW)
    member = carried.member & runs
    ended = jnp.sum(carried.member) - jnp.sum(member)
    kept = knobs["keep_finished"]
    ghosts = carried.ghosts + jnp.where(kept, ended, 0)
    joins = carried.last & runs & (row != chunked)
    shrinks = (~kept & (ended > 0)) | (jnp.sum(joins) < carried.last_size)
    # Into an empty running batch the last one comes with its own flag.
    replaces = jnp.any(joins) & ~jnp.any(member) & (ghosts == 0)
    carried = replace(
        carried, chunked=chunked, member=member | joins, ghosts=ghosts,
        full=carried.full & ~shrinks & ~replaces,
    )
    running = lax.cond(
        jnp.any(carried.fresh), lambda: _rotate(view, carried), lambda: view.running
    )
    return carried, replace(view, running=running)


def _rotate(view: View, carried: Carried) -> Int[Array, "S"]:
    """The run order after a mixed batch: its prefills, its decodes, the half computed request."""
    running, seats = view.running, view.running.shape[0]
    last = view.seated & (running == carried.chunked)
    first = view.seated & carried.fresh[running] & ~last
    middle = view.seated & ~first & ~last
    place = jnp.select(
        [first, middle, last],
        [
            jnp.cumsum(first) - 1, jnp.sum(first) + jnp.cumsum(middle) - 1,
            jnp.full(seats, view.num_running - 1),
        ],
        seats,
    )
    return jnp.full(seats, NO_ROW, jnp.int32).at[place].set(running, mode="drop")


def _prefill(knobs: dict, carried: Carried, view: View, rule: Admission, crossing):
    """The walk over the queue behind the half computed request, if there is a prefill at all."""
    rows, waits = view.rows, jnp.any(view.waiting)
    chunked = carried.chunked != NO_ROW
    priority, checks = knobs["enable_priority_scheduling"], knobs["check_memory"]
    mixed, page = knobs["enable_mixed_chunk"], view.system.block_size
    full = carried.full & ~priority
    batch = jnp.sum(carried.member) + carried.ghosts
    seats = knobs["max_running_requests"] - batch
    wanted = chunked | (waits & ~full)
    no_seat = wanted & ~chunked & (seats <= 0) & ~priority

    decodes = jnp.where(mixed, batch, 0)
    pages = jnp.where(mixed, jnp.sum(crossing), 0)
    taken = jnp.where(checks, jnp.maximum(decodes, pages * page), decodes)
    memory = view.free_blocks * page
    size = jnp.where(
        knobs["chunked_prefill_size"] > 0, knobs["chunked_prefill_size"], view.iteration_tokens
    )
    row = jnp.maximum(carried.chunked, 0)
    extend = rule.tokens[row] - rows.computed[row]
    adder = empty_adder(
        view, room=memory - taken, now=memory - taken, input=knobs["max_prefill_tokens"] - decodes,
        chunk=jnp.minimum(size, view.iteration_tokens) - decodes, seats=seats, batch=batch,
        estimated=jnp.sum(jnp.where(carried.member, rule.estimate, 0)),
        ends=rule.ends(carried.member | (chunked & (jnp.arange(crossing.shape[0]) == row))),
    )
    most = adder.room - ratios.rounded_up(carried.ratio, adder.estimated)
    # The rest of its last page costs nothing.
    most = jnp.where(checks, jnp.maximum(most, lax.rem(page - lax.rem(rows.computed[row], page),
                                                       page)), most)
    most = jnp.minimum(adder.chunk, most)
    stalls = checks & ((pages > view.free_blocks) | (chunked & (most <= 0)))
    opens = wanted & ~no_seat & ~stalls
    goes = opens & chunked
    piece = jnp.where(goes, jnp.clip(most, 0, extend), 0)
    truncated = extend > most
    output = jnp.where(truncated, 0, jnp.minimum(rows.max_tokens[row], CLIP))
    charged = replace(
        rule.charge(adder, piece, output), seats=seats - 1,
        chunked=jnp.where(truncated, row, NO_ROW).astype(jnp.int32),
        # A chunk that fills the budget is not the last word: the next request is asked.
        closed=adder.closed,
    )
    adder = jax.tree.map(lambda new, old: jnp.where(goes, new, old), charged, adder)
    queue = rules.start_queue(
        view, budget=_UNBOUNDED, seats=_UNBOUNDED, free=view.free_blocks,
        grant=jnp.zeros_like(rows.held).at[row].add(piece), kv_tokens=jnp.zeros_like(rows.held),
        limited_by=jnp.where(
            waits,
            jnp.select(
                [no_seat, ~wanted | (opens & full), stalls],
                [int(LimitedBy.SEATS), int(LimitedBy.FREEZE), int(LimitedBy.BLOCKS)],
                int(LimitedBy.QUEUE_EMPTY),
            ),
            int(LimitedBy.QUEUE_EMPTY),
        ),
        extra=adder,
    )
    walks = opens & ~full
    queue = rules.admit_in_order(
        view, queue, rule.offer, walks, _urgency(knobs, carried, view)
    )
    latches = (queue.limited_by == LimitedBy.SEATS) | (queue.limited_by == LimitedBy.BLOCKS)
    no_memory = queue.extra.closed == LimitedBy.BLOCKS
    full |= no_seat | (walks & (latches | no_memory))
    return queue, replace(carried, full=full), goes


def _urgency(knobs: dict, carried: Carried, view: View) -> Int[Array, "P"]:
    """Waiting requests with a smaller number go first; the queue decides among equals."""
    rows = view.rows
    longest = view.system.max_length
    outputs = jnp.where(knobs["order"] == 1, longest - rows.max_tokens, 0)
    sign = jnp.where(knobs["schedule_low_priority_values_first"], 1, -1)
    # Priorities far beyond what is in use would not fit beside the outputs: they are alike.
    reach = lax.div(jnp.int32(_UNBOUNDED), longest + 1)
    priority = jnp.where(knobs["enable_priority_scheduling"], sign * rows.priority, 0)
    sorts = jnp.clip(priority, -reach, reach) * (longest + 1) + outputs
    urgency = jnp.where(knobs["order"] == 1, sorts, priority)
    return jnp.where(knobs["order"] == 2, _shuffled(rows.request, carried.turn), urgency)


def _shuffled(request: Int[Array, "P"], turn: Int[Array, ""]) -> Int[Array, "P"]:
    """A number for each request that looks random and differs in every iteration."""
    number = request.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
    number += turn.astype(jnp.uint32) * jnp.uint32(0x85EBCA77)
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
        number = (number ^ number >> shift) * jnp.uint32(factor)
    return (number >> 1).astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Decode:
    """A decode step of the running batch."""

    stays: Bool[Array, "P"]  # rows that decode
    running: Int[Array, "S"]
    preempt: Bool[Array, "P"]
    order: Int[Array, "P"]
    chunked: Int[Array, ""]
    ratio: Ratio


def _decode(knobs: dict, carried: Carried, view: View, tokens, crossing) -> _Decode:
    """All of the running batch, or what is left of it after retraction."""
    nobody = jnp.zeros(crossing.shape, bool)

    def everyone() -> _Decode:
        ratio = ratios.decay(carried.ratio, knobs["new_token_ratio_decay_steps"])
        decodes = jnp.any(carried.member)
        ratio = jax.tree.map(lambda new, old: jnp.where(decodes, new, old), ratio, carried.ratio)
        return _Decode(
            carried.member, view.running, nobody, jnp.zeros_like(tokens), carried.chunked, ratio
        )

    return lax.cond(
        jnp.sum(crossing) <= view.free_blocks, everyone,
        lambda: _retract(knobs, carried, view, tokens, crossing),
    )


def _retract(knobs: dict, carried: Carried, view: View, tokens, crossing) -> _Decode:
    """The members with fewest outputs leave, longest prompt first, until the others fit.

    At least one leaves and one stays; if that one still does not fit, the half computed request
    leaves too.
    """
    rows, seats = view.rows, view.running.shape[0]
    inside = view.seated & carried.member[view.running]
    outputs = (tokens - rows.prompt)[view.running]
    first = jnp.lexsort((rows.prompt[view.running], -outputs, ~inside))
    line, inside = view.running[first], inside[first]
    live, index = jnp.sum(inside), jnp.arange(seats)
    need = jnp.cumsum(jnp.where(inside, crossing[line], 0))
    freed = jnp.cumsum(jnp.where(inside, view.freed[line], 0))
    fits = need <= view.free_blocks + freed[-1] - freed
    stay = jnp.maximum(jnp.sum(fits & (index < live - 1)), 1)
    halved = (carried.chunked != NO_ROW) & ~fits[stay - 1]
    stays = index < stay

    def at_rows(mask, values):
        place = jnp.where(mask, line, tokens.shape[0])
        return jnp.zeros(tokens.shape, values.dtype).at[place].set(values, mode="drop")

    victim = inside & ~stays
    chunked = jnp.arange(tokens.shape[0]) == carried.chunked
    order = jnp.where(chunked, live - stay, at_rows(victim, live - 1 - index))
    kept = jnp.where(halved, NO_ROW, carried.chunked)
    running = jnp.where(stays, line, jnp.where(index == stay, kept, NO_ROW))
    made = jnp.sum(jnp.where(stays, outputs[first], 0)) + knobs["retract_decode_steps"] * stay
    most = jnp.sum(jnp.where(stays, rows.max_tokens[line], 0)) + 1
    return _Decode(
        stays=at_rows(stays, stays), running=running.astype(jnp.int32),
        preempt=at_rows(victim, victim) | (halved & chunked), order=order.astype(jnp.int32),
        chunked=kept, ratio=ratios.share(carried.ratio, made, most),
    )


def _unseen(carried: Carried, rows, decodes, prefills, chunked, preempt) -> Int[Array, "P"]:
    """Tokens that the next decision does not know of yet.

    A retraction drops the token on its way, which is then computed once more: the row keeps it
    here, and its next prefill yields nothing new.
    """
    chunk = jnp.arange(decodes.shape[0]) == chunked
    waits = preempt | (rows.status == Status.PREEMPTED) | chunk
    samples = decodes | (prefills & ~chunk)
    return jnp.where(samples, 1, jnp.where(waits, carried.unseen, 0))


_DECIDE = {ahead: partial(_decide, ahead=ahead) for ahead in (False, True)}

