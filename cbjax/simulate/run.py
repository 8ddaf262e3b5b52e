"""What goes from turn to turn of the simulator's loop, and what decides its program."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from cbjax.core.commit import commit
from cbjax.core.limits import Limits
from cbjax.core.policy import Policy
from cbjax.core.rows import NO_REQUEST
from cbjax.core.schedule import schedule
from cbjax.core.state import State
from cbjax.core.time import Time
from cbjax.simulate import book, log, stream
from cbjax.simulate.book import Notes
from cbjax.simulate.histogram import BINS
from cbjax.simulate.stream import Stream

PATIENCE = 3  # turns in a row that may change nothing, as in the engine's loop


@dataclass(frozen=True)
class Shape:
    """What decides which program is compiled.

    Attributes:
        limits: the capacities.
        lanes: K, most iterations of a leap; 0 = no leaps are compiled in.
        turns: most turns of one call.
        rows: of the log per call, one per iteration or turn that moves requests; 0 = no log.
        pages: whole plans are kept, for the exact record of every token.
        gaps: count the gaps between tokens.
        closed: a closed loop.
        shaped: rungs matter: padding or compilation counts.
    """

    limits: Limits
    lanes: int = 32
    turns: int = 4096
    rows: int = 16384
    pages: bool = False
    gaps: bool = True
    closed: bool = False
    shaped: bool = False


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Run:
    """Everything that goes from turn to turn; the requests R appear in `kept` and `stream` only."""

    state: State
    stream: Stream
    notes: Notes
    kept: Int[Array, "R F"]
    first: Int[Array, ""]  # the next request to enter the rows
    arrived: Int[Array, ""]
    ended: Int[Array, ""]
    iteration: Int[Array, ""]
    turns: Int[Array, ""]  # of this call
    idle: Int[Array, ""]  # turns in a row that changed nothing
    limited_by: Int[Array, ""]  # LimitedBy of the last one
    compiled: Bool[Array, "G"]  # rungs used so far
    gaps: Int[Array, "B"]  # histogram of the gaps between tokens
    held_back: Int[Array, "S"]  # requests of the batch that ended before it; NO_REQUEST
    log: Int[Array, "F C"]
    rows: Int[Array, ""]  # written in the log
    pages: Any  # stacked (Plan, Emitted, start, end), or None


def begin(state: State, requests: Stream, rungs: int, shape: Shape) -> Run:
    """Before the first turn."""
    limits = shape.limits
    zero: Any = np.int32(0)
    return Run(
        state=state, stream=requests, notes=book.empty_notes(limits.rows),
        kept=book.empty_kept(requests.prompt.shape[0]), first=zero, arrived=zero, ended=zero,
        iteration=zero, turns=zero, idle=zero, limited_by=zero, compiled=jnp.zeros(rungs, bool),
        gaps=jnp.zeros(BINS if shape.gaps else 0, jnp.int32),
        held_back=jnp.full(limits.seats, NO_REQUEST, jnp.int32),
        log=log.empty_log(shape.rows, shape.lanes), rows=zero, pages=None,
    )


def with_pages(policy: Policy, run: Run, shape: Shape) -> Run:
    """Room for the plans of `shape.rows` iterations."""
    def facts():
        inbox = stream.inbox_of(
            run.stream, run.first, run.first, run.first, run.state.clock, shape.limits
        )
        state, plan = schedule(policy, run.state, inbox, shape.limits)
        nothing = jnp.zeros(shape.limits.rows, jnp.int32)
        emitted = commit(state, plan, nothing, nothing > 0, state.clock)[1]
        return plan, emitted, state.clock, state.clock

    return replace(run, pages=jax.tree.map(
        lambda leaf: jnp.zeros((shape.rows, *leaf.shape), leaf.dtype), jax.eval_shape(facts)
    ))


def is_done(run: Run) -> Bool[Array, ""]:
    """Whether every request has ended, and what ended has left its row."""
    done = run.ended == run.stream.count
    return done if run.state.ending is None else done & ~jnp.any(run.state.ending)


def outside(run: Run) -> tuple[Int[Array, ""], Time]:
    """Requests that wait outside the rows, and the next arrival."""
    return run.arrived - run.first, stream.moment_at(run.stream, run.arrived)
