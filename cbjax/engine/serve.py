"""Serving a workload: requests in at their time, every iteration into the recorder.

Open loop: a request is sent when it is due, however far behind the system is. Closed loop: a fixed
number of clients, each sending its next request when the last one ends. Conversations: a turn is
due a time to think after the answer before it. The clock is the server's,
so the same function serves a model in real time and a unit clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW
from cbjax.core.time import to_seconds
from cbjax.engine.clock import Clock
from cbjax.engine.delivery import finished_in
from cbjax.engine.due import Due
from cbjax.engine.loop import Step
from cbjax.metrics import IterationEvent, Recorder
from cbjax.workload import Workload, WorkloadRequest

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Turn:
    """A step and what the server made of it.

    Attributes:
        step: the scheduler's side.
        delivered: tokens handed to each client now; None = all that were emitted.
        finished: requests whose end is told now, with the reason; None = all that ended.
        ended: requests that ended apart from the iteration's own endings, with reason and error.
    """

    step: Step
    delivered: list[tuple[int, int]] | None = None
    finished: list[tuple[int, str]] | None = None
    ended: tuple[tuple[int, str, str | None], ...] = ()


class Server(Protocol):
    """What `serve` drives."""

    clock: Clock

    @property
    def alive(self) -> int:
        """Requests that have not ended."""

    def accept(self, request: WorkloadRequest, due_s: float) -> int:
        """Take a request in; returns its prompt tokens."""

    def expect(self, arrivals: bool) -> None:
        """Whether more requests are to come."""

    def turn(self) -> Turn:
        """One iteration."""


def serve(
    server: Server, workload: Workload, recorder: Recorder, progress: Progress | None = None
) -> None:
    """Serve every request of a workload and record what happened.

    Args:
        server: an idle server whose clock has just started.
        workload: requests with their arrival times, or a concurrency.
        recorder: receives every event.
        progress: `(label, done, total)` after each iteration that ended a request.
    """
    due, clock = Due(workload), server.clock
    ended, done_s = 0, clock.now()
    while due or server.alive:
        now = clock.now()
        for scheduled, request in due.take(now, server.alive):
            prompt_tokens = server.accept(request, scheduled)
            recorder.submitted(
                request.request_id, class_name=request.class_name, priority=request.priority,
                scheduled_arrival_s=scheduled, submitted_s=clock.now(),
                prompt_tokens=prompt_tokens, max_tokens=request.max_tokens,
            )
        if not server.alive:
            clock.wait_until(now if due.next_s is None else due.next_s)
            done_s = clock.now()
            continue
        server.expect(bool(due))
        turn = server.turn()
        for request_id, end_s in record(turn, recorder, done_s):
            due.ended(request_id, end_s)
            ended += 1
        if progress:
            progress("requests", ended, len(workload))
        done_s = turn.step.done_s
        if turn.step.rung is None:
            _wait(clock, turn.step, due.next_s)
            done_s = clock.now()


def _wait(clock: Clock, step: Step, next_arrival: float | None) -> None:
    """Sleep until something can change; a step that only moved requests is followed at once."""
    never = int(step.plan.wake.seconds) == np.iinfo(np.int32).max
    moments = [] if never else [to_seconds(step.plan.wake)]
    if next_arrival is not None and not never:
        moments.append(next_arrival)
    if moments:
        clock.wait_until(min(moments))


def record(turn: Turn, recorder: Recorder, before_s: float) -> list[tuple[int, float]]:
    """Tell the recorder of one turn; returns which requests ended in it, and when.

    Args:
        turn: what happened.
        recorder: receives it.
        before_s: when the turn before was done, or the wait after it: all since then was host work.
    """
    step = turn.step
    for request_id in step.entered:
        recorder.visible(request_id, step.begun_s)
    for request_id, refusal in step.refused:
        recorder.refused(request_id, step.begun_s, f"{refusal.word}: {refusal.sentence}")
    event = _event(turn, before_s)
    recorder.iteration(event)
    for request_id, reason, error in turn.ended:
        recorder.ended(request_id, step.told_s, reason, error)
    return [
        *((request_id, step.begun_s) for request_id, _ in step.refused),
        *((request_id, step.told_s) for request_id, _ in event.finished),
        *((request_id, step.told_s) for request_id, _, _ in turn.ended),
    ]


def _event(turn: Turn, before_s: float) -> IterationEvent:
    step, plan = turn.step, turn.step.plan
    emitted, rung = step.emitted, step.rung
    grants = [
        (int(plan.requests[row]), int(tokens), int(fresh), "prefill" if prefill else "decode")
        for row, tokens, fresh, prefill in zip(
            plan.running, plan.grants, plan.fresh, plan.prefilling, strict=True
        )
        if row != NO_ROW and tokens > 0
    ]
    cached = []
    if plan.cached is not None:
        # A request that returns finds its own blocks too: only its first prompt counts.
        first = plan.admitted & ~plan.resumed
        cached = [
            (request, int(tokens))
            for request, tokens in zip(step.ids(first), plan.cached[first], strict=True)
        ]
    apart = {request_id for request_id, _, _ in turn.ended}
    ends = finished_in(step) if turn.finished is None else turn.finished
    finished = [(request_id, reason) for request_id, reason in ends if request_id not in apart]
    return IterationEvent(
        start_s=step.start_s, duration_s=step.end_s - step.start_s, told_s=step.told_s,
        host_s=(step.start_s - before_s) + (step.done_s - step.end_s),
        rung="" if rung is None else str(rung), rung_tokens=0 if rung is None else rung.tokens,
        computed=rung is not None, extra_tokens=int(plan.extra_tokens),
        grants=grants, admitted=step.ids(plan.admitted), cached=cached,
        preempted=step.ids(plan.preempted),
        swapped=step.ids(plan.swapped_out),
        emitted=[] if emitted is None else step.ids(emitted.emitted),
        delivered=turn.delivered, finished=finished, running=int(plan.num_running),
        waiting=int(plan.num_waiting), backlog=int(plan.backlog),
        used_blocks=step.num_blocks - int(plan.free_blocks), free_blocks=int(plan.free_blocks),
        live_tokens=int(plan.live_tokens), block_size=step.block_size,
        limited_by=LimitedBy(int(plan.limited_by)).word,
    )
