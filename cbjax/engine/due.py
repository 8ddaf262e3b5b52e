"""Requests that are still to be sent, and when each is due."""

import heapq
from collections import deque
from collections.abc import Iterator

from cbjax.workload import Workload, WorkloadRequest


class Due:
    """The requests of a workload until they are sent.

    Due at a time of its own; some time after the end of another request; or, in a closed loop, when
    there are fewer in the system than its concurrency.
    """

    def __init__(self, workload: Workload) -> None:
        self._concurrency = workload.concurrency or 1
        self._loop: deque[WorkloadRequest] = deque()
        self._timed: list[tuple[float, int, WorkloadRequest]] = []
        self._after: dict[int, WorkloadRequest] = {}
        for one in workload.requests:
            if one.after is not None:
                self._after[one.after] = one
            elif one.scheduled_arrival_s is None:
                self._loop.append(one)
            else:
                # In order of arrival, which is a heap.
                self._timed.append((one.scheduled_arrival_s, one.request_id, one))

    def __bool__(self) -> bool:
        return bool(self._timed or self._loop or self._after)

    @property
    def next_s(self) -> float | None:
        """When the next one is due, as far as that is known."""
        return self._timed[0][0] if self._timed else None

    def take(self, now: float, alive: int) -> Iterator[tuple[float, WorkloadRequest]]:
        """Those that are due by now, with the moment since when they are.

        Args:
            now: the clock.
            alive: requests in the system before any of these.
        """
        while self._timed and self._timed[0][0] <= now:
            due_s, _, request = heapq.heappop(self._timed)
            alive += 1
            yield due_s, request
        # In a closed loop a request is due when its client is free.
        while self._loop and alive < self._concurrency:
            alive += 1
            yield now, self._loop.popleft()

    def ended(self, request_id: int, end_s: float) -> None:
        """A request has ended: who waits for it is due after a time to think."""
        one = self._after.pop(request_id, None)
        if one is not None:
            heapq.heappush(self._timed, (end_s + one.think_s, one.request_id, one))
