"""A policy from four small pure functions: order, admit, chunk, victim.

The frame is the same for all: running requests first, in run order, under one token budget; if
blocks run out, victims give up theirs and go back to their place in the queue; in an iteration
without victims, waiting requests are admitted in the order wanted until the first that may not
(head-of-line blocking). What differs between many published policies is only:

    order(view)                       -> keys [P], or several of them; the smallest is next in line
    admit(view, queue, row, tokens)   -> Offer: what it must own, and why not
    chunk(pending, left)              -> tokens to take of `pending` when `left` are left
    victim(view, want, budget)        -> Served: shares of the running rows, and who made room

Ready-made ones are in `cbjax.core.parts`. A part with numbers is a `functools.partial`; the numbers
become knobs of the policy, by their own names, so that they can be swept in one compiled program. A
number that two parts have in common, with the same value, is one knob that both read.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp

from cbjax.core import parts, rules
from cbjax.core.decision import Requeue
from cbjax.core.limits import Limits, System
from cbjax.core.parts import Part
from cbjax.core.policy import Policy, require_full_batch_fits
from cbjax.core.reasons import LimitedBy
from cbjax.core.steady import Steady, while_nobody_can_enter
from cbjax.core.view import View


def compose(
    *, order: Part, admit: Part, chunk: Part, victim: Part,
    max_num_batched_tokens: int = 2048, max_num_seqs: int = 256, name: str = "composed",
) -> Policy:
    """A policy from its parts; see the module for what each is asked.

    Args:
        order: who is next in line; ties are broken by the queue.
        admit: whether the next in line may start.
        chunk: how much of a prompt an iteration takes.
        victim: who makes room.
        max_num_batched_tokens: token budget of an iteration, decodes included.
        max_num_seqs: seats.
        name: the policy's name in tables and figures.

    Raises:
        ValueError: a number is out of range, the budget is below the seats, two parts give a number
            of the same name different values, or nobody makes room although blocks may run out.
    """
    knobs: dict[str, Any] = dict(
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs
    )
    require_full_batch_fits(max_num_batched_tokens, max_num_seqs)
    chosen = []
    for part in (order, admit, chunk, victim):
        function, numbers = _split(part)
        for knob, value in numbers.items():
            if knobs.get(knob, value) != value:
                raise ValueError(
                    f"{knob} = {value!r} in one part and {knobs[knob]!r} in another: give both the "
                    "same value to share the knob, or rename one of them"
                )
        knobs |= numbers
        chosen.append(_Part(function, tuple(numbers)))
    if victim is parts.none and admit is not parts.reserves_output:
        raise ValueError(
            "victim = none, but admitted requests may run out of blocks: choose "
            "admit = reserves_output, or a victim"
        )
    return Policy(
        knobs=knobs, name=name, init=_Start(chosen[2]), decide=_Decide(*chosen),
        seats="max_num_seqs", budget="max_num_batched_tokens",
        # Of other parts nothing is known.
        steady=_Steady(*chosen) if all(part.ready_made for part in chosen) else None,
    )


@dataclass(frozen=True)
class _Part:
    """A function and the knobs it reads; equal parts make equal policies, compiled once."""

    function: Part
    knobs: tuple[str, ...]

    @property
    def ready_made(self) -> bool:
        """Whether it gives a decode its token and, once it keeps a request out, goes on to do so.

        As long as the same requests run, and blocks become fewer.
        """
        return self.function.__module__ == parts.__name__

    def __call__(self, knobs: dict[str, Any], *arguments):
        return self.function(*arguments, **{name: knobs[name] for name in self.knobs})


def _split(part: Part) -> tuple[Part, dict[str, Any]]:
    if isinstance(part, partial):
        return part.func, part.keywords
    return part, {}


@dataclass(frozen=True)
class _Start:
    """Start-up rule: the longest sequence gets on."""

    chunk: _Part

    def __call__(self, knobs: dict[str, Any], limits: Limits, system: System) -> tuple[()]:
        budget, longest = int(knobs["max_num_batched_tokens"]), int(system.max_length)
        if int(self.chunk(knobs, longest, budget)) < 1:
            raise ValueError(
                f"max_num_batched_tokens = {budget} is below max_length = {longest} although "
                "prompts are not split: raise the budget, shorten max_length or choose chunks"
            )
        return ()


@dataclass(frozen=True)
class _Decide:
    """The frame around the four parts."""

    order: _Part
    admit: _Part
    chunk: _Part
    victim: _Part

    def __call__(self, knobs: dict[str, Any], state: tuple, view: View):
        budget = knobs["max_num_batched_tokens"]
        computed = view.in_run_order(view.rows.computed)
        pending = view.in_run_order(view.rows.known) - computed
        served = self.victim(knobs, view, self.chunk(knobs, pending, budget), budget)
        preempts = served.preempted > 0

        def offer(row, queue: rules.Queue) -> rules.Offer:
            tokens = self.chunk(knobs, view.rows.known[row], queue.budget)
            answer = self.admit(knobs, view, queue, row, tokens)
            limited_by = jnp.where(tokens > 0, answer.limited_by, int(LimitedBy.BUDGET))
            return rules.Offer(tokens, answer.kv_tokens, limited_by)

        queue = rules.admit_in_order(
            view,
            rules.start_queue(
                view, budget=served.budget, seats=knobs["max_num_seqs"] - view.num_running,
                free=served.free, grant=view.per_row(served.grant),
                kv_tokens=view.per_row(jnp.where(served.grant > 0, computed + served.grant, 0)),
                limited_by=jnp.where(preempts, int(LimitedBy.PREEMPTING), 0),
            ),
            offer, ~preempts, self.order(knobs, view),
        )
        decision = rules.decide(
            view, queue, preempt=view.per_row(view.seated & ~served.stays),
            preempt_order=view.per_row(served.order),
            # At the front, two equal requests would take turns at being the victim for ever.
            requeue=jnp.full(view.rows.held.shape, int(Requeue.KEPT), jnp.int32),
        )
        return decision, state


@dataclass(frozen=True)
class _Steady:
    """The same frame while all that runs decodes: who is asked first, and whether it may start."""

    order: _Part
    admit: _Part
    chunk: _Part
    victim: _Part

    def __call__(self, knobs: dict[str, Any], state: tuple, view: View) -> Steady:
        nothing = jnp.zeros_like(view.rows.held)
        seats = knobs["max_num_seqs"]
        queue = rules.start_queue(
            view, budget=knobs["max_num_batched_tokens"] - view.num_running,
            seats=seats - view.num_running, free=view.free_blocks, grant=nothing, kv_tokens=nothing,
        )
        row = rules.first_in_line(view, self.order(knobs, view))
        tokens = self.chunk(knobs, view.rows.known[row], queue.budget)
        why = self.admit(knobs, view, queue, row, tokens).limited_by
        # What is kept free may turn into what lacks.
        lasts = (why == LimitedBy.BLOCKS) | (tokens == 0)
        why = jnp.where(tokens > 0, why, int(LimitedBy.BUDGET))
        return while_nobody_can_enter(
            view, seats=seats, open_=queue.budget >= 0,
            held_up=jnp.where(lasts, why, int(LimitedBy.QUEUE_EMPTY)),
        )
