"""Workloads counted in iterations, and what they look like as padded arrays.

No model and no clock: a request arrives before an iteration, and its outputs are made up. Every
output token is unlike any other, so that generated text never resembles another request's.
"""

from dataclasses import dataclass

import numpy as np

_OUTPUTS, _LONGEST = 1_000_000, 4096  # ids of outputs begin here; most outputs of a request


@dataclass(frozen=True)
class Request:
    """A request of a workload."""

    id: int  # its place in the workload
    arrival: int  # iteration before which it arrives
    prompt: int
    max_tokens: int  # 0 = as many as fit
    stop_after: int = 0  # output tokens after which it produces a stop token; 0 = never
    priority: int = 0
    token_ids: tuple[int, ...] = ()  # of the prompt; may be empty where nobody reads them
    deadline: int | None = None  # iteration


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, and (iteration, id) of the aborts."""

    requests: tuple[Request, ...]
    aborts: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if [request.id for request in self.requests] != list(range(len(self.requests))):
            raise ValueError("requests: ids must be 0, 1, 2, ... in order of arrival")
        arrivals = [request.arrival for request in self.requests]
        if arrivals != sorted(arrivals):
            raise ValueError("requests: arrivals must not decrease")


def output_token(request, index):
    """Token id of output `index` of a request: no two are alike, and none is a prompt's."""
    return _OUTPUTS + _LONGEST * request + index


def as_arrays(workload: Workload, size: int, context: int = 0) -> dict[str, np.ndarray]:
    """The workload padded to `size` requests and as many aborts; padding never arrives.

    Args:
        workload: at most `size` requests and aborts.
        size: entries of every column.
        context: token ids kept of each prompt.

    Raises:
        ValueError: the workload is larger than `size`.
    """
    never = np.iinfo(np.int32).max

    def column(values, fill):
        values = list(values)
        if len(values) > size:
            raise ValueError(f"workload of {len(values)} entries: at most {size} fit")
        return np.array(values + [fill] * (size - len(values)), np.int32)

    requests = workload.requests
    token_ids = np.zeros((size, context), np.int32)
    for index, request in enumerate(requests):
        ids = request.token_ids[:context]
        token_ids[index, : len(ids)] = ids
    return dict(
        arrival=column((request.arrival for request in requests), never),
        prompt=column((request.prompt for request in requests), 0),
        max_tokens=column((request.max_tokens for request in requests), 0),
        stop_after=column((request.stop_after for request in requests), 0),
        priority=column((request.priority for request in requests), 0),
        deadline=column(
            (never if request.deadline is None else request.deadline for request in requests),
            never,
        ),
        token_ids=token_ids,
        abort_at=column((when for when, _ in workload.aborts), -1),
        abort_id=column((id for _, id in workload.aborts), -1),
    )
