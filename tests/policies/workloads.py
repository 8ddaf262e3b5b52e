"""Workloads of the policy tests, and what they look like as padded arrays."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Request:
    """A request of a workload."""

    id: int  # its place in the workload
    arrival: int  # iteration before which it arrives
    prompt: int
    max_tokens: int  # 0 = as many as fit
    stop_after: int = 0  # output tokens after which it produces a stop token; 0 = never


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, and (iteration, id) of the aborts."""

    requests: tuple[Request, ...]
    aborts: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        assert [request.id for request in self.requests] == list(range(len(self.requests)))
        arrivals = [request.arrival for request in self.requests]
        assert arrivals == sorted(arrivals)


def as_arrays(workload: Workload, size: int) -> dict[str, np.ndarray]:
    """The workload padded to `size` requests and as many aborts; padding never arrives."""
    never = np.iinfo(np.int32).max

    def column(values, fill):
        values = list(values)
        assert len(values) <= size
        return np.array(values + [fill] * (size - len(values)), np.int32)

    requests = workload.requests
    return dict(
        arrival=column((request.arrival for request in requests), never),
        prompt=column((request.prompt for request in requests), 0),
        max_tokens=column((request.max_tokens for request in requests), 0),
        stop_after=column((request.stop_after for request in requests), 0),
        abort_at=column((when for when, _ in workload.aborts), -1),
        abort_id=column((id for _, id in workload.aborts), -1),
    )
