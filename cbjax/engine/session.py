"""One served workload: the engine in the shape that `serve` drives."""

from typing import TYPE_CHECKING, Any

from cbjax.engine.request import Completion, Request
from cbjax.engine.serve import Turn
from cbjax.workload import Workload, WorkloadRequest

if TYPE_CHECKING:
    from cbjax.engine.engine import Engine


class Session:
    """Takes a workload's requests in and remembers them beyond their end."""

    def __init__(self, engine: "Engine", sampling: dict[str, Any]) -> None:
        """Serve with an idle engine whose clock has just started.

        Args:
            engine: the engine.
            sampling: fields of `Sampling` that all requests share.
        """
        self._engine = engine
        self._sampling = sampling
        self._requests: dict[int, Request] = {}
        self.clock = engine.clock

    @property
    def alive(self) -> int:
        """Requests that have not ended."""
        return self._engine.alive

    def accept(self, request: WorkloadRequest, due_s: float) -> int:
        """Submit a request under its own seed and length; returns its prompt tokens."""
        engine = self._engine
        engine.submit(
            request.prompt or (), request_id=request.request_id, priority=request.priority,
            arrival_s=due_s, seed=request.seed, max_tokens=request.max_tokens,
            ignore_eos=request.ignore_eos, predicted_tokens=request.predicted_tokens,
            **self._sampling,
        )
        self._requests[request.request_id] = engine.requests[request.request_id]
        return len(self._requests[request.request_id].prompt_ids)

    def expect(self, arrivals: bool) -> None:
        """Whether more requests are to come."""
        self._engine.scheduler.expects_arrivals = arrivals

    def turn(self) -> Turn:
        """One iteration."""
        return self._engine.turn()[0]

    def completions(self, workload: Workload) -> list[Completion]:
        """What became of the requests, in the order of the workload."""
        return [self._requests[one.request_id].completion() for one in workload.requests]
