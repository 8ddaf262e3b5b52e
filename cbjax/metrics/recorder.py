"""Turns events, in the order they happen, into the tables of a run.

The recorder is the one honest object of this package: it remembers. It decides nothing and computes
no statistics; those are functions over its tables. The only thing it adds is a *lane* for every
running request, because the scheduler's rows never move while pictures need seats that are reused.
"""

import heapq
from dataclasses import dataclass, field

from cbjax.metrics.events import IterationEvent
from cbjax.metrics.tables import (
    ITERATION_COLUMNS,
    MEMORY_COLUMNS,
    REQUEST_COLUMNS,
    SCHEDULE_COLUMNS,
    Tables,
    frame,
)


@dataclass
class _Request:
    request_id: int
    class_name: str
    priority: int
    scheduled_arrival_s: float
    submitted_s: float
    prompt_tokens: int
    visible_s: float | None = None
    admitted_s: float | None = None
    finished_s: float | None = None
    output_tokens: int = 0
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    recomputed_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    token_times_s: list[float] = field(default_factory=list)

    def row(self) -> tuple:
        times = self.token_times_s
        gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
        return (
            self.request_id,
            self.class_name,
            self.priority,
            self.scheduled_arrival_s,
            self.submitted_s,
            self.visible_s,
            self.admitted_s,
            times[0] if times else None,
            self.finished_s,
            self.prompt_tokens,
            self.output_tokens,
            self.cached_prompt_tokens,
            self.preemptions,
            self.swaps,
            self.recomputed_tokens,
            round(max(gaps), 9) if gaps else None,
            self.finish_reason,
            self.error,
            list(times),
        )


class Recorder:
    """Collects the events of one run.

    Times are seconds since the start of the run's clock, given by the caller; the recorder never
    looks at a clock, so a simulator and an engine use it alike. Seats are lanes: a request takes
    the lowest free lane when it is admitted and gives it back when preempted or finished.
    """

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        self._iterations: list[tuple] = []
        self._schedule: list[tuple] = []
        self._memory: list[tuple] = []
        self._lane_of: dict[int, int] = {}
        self._free_lanes: list[int] = []
        self._lanes = 0
        self._moved = [0, 0, 0]  # preempted, admitted, finished since the last iteration's row

    def submitted(
        self,
        request_id: int,
        *,
        class_name: str = "",
        priority: int = 0,
        scheduled_arrival_s: float,
        submitted_s: float,
        prompt_tokens: int,
        max_tokens: int | None = None,
    ) -> None:
        """A request was sent.

        Args:
            request_id: unique in the run.
            class_name: workload class, "" where there is none.
            priority: as the policy understands it.
            scheduled_arrival_s: when the workload meant it to arrive; latencies count from here.
            submitted_s: when it was really sent; later than scheduled if the client was late.
            prompt_tokens: length of the prompt in tokens.
            max_tokens: asked limit; accepted so that callers can pass a request whole, not stored.

        Raises:
            ValueError: the id was used before.
        """
        if request_id in self._requests:
            raise ValueError(f"request_id={request_id} was submitted before; ids must be unique")
        self._requests[request_id] = _Request(
            int(request_id),
            class_name,
            int(priority),
            float(scheduled_arrival_s),
            float(submitted_s),
            int(prompt_tokens),
        )

    def visible(self, request_id: int, time_s: float) -> None:
        """The request entered the scheduler's window (seconds); only the first time counts."""
        request = self._find(request_id)
        if request.visible_s is None:
            request.visible_s = float(time_s)

    def refused(self, request_id: int, time_s: float, reason: str) -> None:
        """The request was refused at the door, with a reason for the user."""
        self.ended(request_id, time_s, "refused", error=reason)

    def ended(
        self, request_id: int, time_s: float, finish_reason: str, error: str | None = None
    ) -> None:
        """The request ended outside of an iteration: an abort, an error, or a client's last chunk.

        Args:
            request_id: as submitted.
            time_s: when, in seconds.
            finish_reason: "abort", "error", "stop", "length", ...; an `error` text marks a failure.
            error: what went wrong, or None.
        """
        request = self._find(request_id)
        request.finish_reason = finish_reason
        request.error = error
        request.finished_s = float(time_s)
        self._leave_lane(request_id)

    def received(self, request_id: int, time_s: float, tokens: int = 1) -> None:
        """Tokens reached the user outside of an iteration (an external endpoint, a late flush)."""
        self._deliver(self._find(request_id), float(time_s), tokens)

    def iteration(self, event: IterationEvent) -> None:
        """One turn of the loop happened; events come in order of time.

        A turn that computed nothing has no row; whom it moved, and whose end was told in it, count
        for the iteration after it.

        Raises:
            ValueError: the event names a request that was never submitted.
        """
        number = len(self._iterations)
        span = (float(event.start_s), float(event.duration_s))
        told_s = float(event.end_s if event.told_s is None else event.told_s)

        swapped = set(event.swapped)
        for request_id in event.preempted:
            request = self._find(request_id)
            # A schedule that runs ahead may take the seat of one that has just ended: no loss.
            if request.finished_s is None:
                request.preemptions += 1
                request.swaps += request_id in swapped
            lane = self._leave_lane(request_id)
            self._schedule.append((number, request.request_id, lane, "preempted", 0, *span))
        for request_id, tokens in event.cached:
            self._find(request_id).cached_prompt_tokens = int(tokens)
        # A request is admitted when something is computed for it at the earliest.
        for request_id in event.admitted if event.computed else ():
            self._admit(self._find(request_id), span[0])

        by_kind = {"prefill": 0, "decode": 0}
        for request_id, tokens, first_time_tokens, kind in event.grants:
            request = self._find(request_id)
            self._admit(request, span[0])
            request.recomputed_tokens += int(tokens) - int(first_time_tokens)
            by_kind[kind] += int(tokens)
            lane = self._lane_of[request_id]
            self._schedule.append((number, request.request_id, lane, kind, int(tokens), *span))

        for request_id in event.emitted:
            self._find(request_id).output_tokens += 1
        delivered = event.delivered
        if delivered is None:
            delivered = [(request_id, 1) for request_id in event.emitted]
        for request_id, tokens in delivered:
            self._deliver(self._find(request_id), told_s, tokens)
        for request_id, finish_reason in event.finished:
            self.ended(request_id, told_s, finish_reason)

        moved = len(event.preempted), len(event.admitted), len(event.finished)
        self._moved = [sum(counts) for counts in zip(self._moved, moved, strict=True)]
        if event.computed:
            self._add_row(number, event, by_kind["prefill"], by_kind["decode"])

    def _add_row(self, number: int, event: IterationEvent, prefill: int, decode: int) -> None:
        """The iteration's own rows."""
        scheduled = prefill + decode
        self._iterations.append(
            (
                number,
                float(event.start_s),
                float(event.duration_s),
                float(event.host_s),
                event.rung,
                scheduled,
                prefill,
                decode,
                max(int(event.rung_tokens) - scheduled, int(event.extra_tokens)),
                int(event.running),
                int(event.waiting),
                int(event.backlog),
                int(event.used_blocks),
                int(event.free_blocks),
                *self._moved,
                event.limited_by,
                int(event.repeats),
            )
        )
        self._moved = [0, 0, 0]
        self._memory.append(
            (
                number,
                int(event.live_tokens),
                int(event.block_size),
                int(event.extra_tokens),
                bool(event.compiled),
            )
        )

    def tables(self) -> Tables:
        """The rows so far; may be called at any time, also while requests still run."""
        rows = [request.row() for request in self._requests.values()]
        return Tables(
            requests=frame(rows, REQUEST_COLUMNS),
            iterations=frame(self._iterations, ITERATION_COLUMNS),
            schedule=frame(self._schedule, SCHEDULE_COLUMNS),
            memory=frame(self._memory, MEMORY_COLUMNS),
        )

    def _find(self, request_id: int) -> _Request:
        try:
            return self._requests[request_id]
        except KeyError:
            raise ValueError(
                f"request_id={request_id} is unknown to the recorder; call submitted() first"
            ) from None

    def _admit(self, request: _Request, time_s: float) -> None:
        if request.admitted_s is None:
            request.admitted_s = time_s
        if request.request_id not in self._lane_of:
            if self._free_lanes:
                lane = heapq.heappop(self._free_lanes)
            else:
                lane = self._lanes
                self._lanes += 1
            self._lane_of[request.request_id] = lane

    def _leave_lane(self, request_id: int) -> int | None:
        lane = self._lane_of.pop(request_id, None)
        if lane is not None:
            heapq.heappush(self._free_lanes, lane)
        return lane

    @staticmethod
    def _deliver(request: _Request, time_s: float, tokens: int) -> None:
        # Tokens held back until the batch ends arrive after the request has finished; the answer
        # is complete for its user only then.
        if tokens > 0 and request.finished_s is not None:
            request.finished_s = max(request.finished_s, time_s)
        request.token_times_s.extend([time_s] * tokens)
        request.output_tokens = max(request.output_tokens, len(request.token_times_s))
