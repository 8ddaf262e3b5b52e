"""What a workload is: a list of requests with their times, fixed before the run.

It holds plain values only. The same workload drives the engine, the simulator and an external
endpoint, and two runs that are to be compared are given one and the same object.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from cbjax.workload.arrivals import Arrivals
from cbjax.workload.checks import require
from cbjax.workload.segments import PromptSegments

Message = Mapping[str, str]
"""One chat message: `role` and `content`."""

PromptContent = str | tuple[Message, ...] | tuple[int, ...]
"""Text, chat messages or token ids."""


def is_token_ids(content: PromptContent) -> TypeGuard[tuple[int, ...]]:
    """Whether a prompt's content is token ids."""
    return isinstance(content, tuple) and all(isinstance(token, int) for token in content)


@dataclass(frozen=True)
class Prompt:
    """A prompt before it belongs to a request.

    Attributes:
        content: text, chat messages or token ids.
        class_name: kind of request it stands for.
        max_tokens: sensible bound on the output, if one is known.
    """

    content: PromptContent
    class_name: str = "default"
    max_tokens: int | None = None

    def as_chat(self) -> "Prompt":
        """A text as the only message of a user, for models trained on conversations."""
        if not isinstance(self.content, str):
            return self
        message = {"role": "user", "content": self.content}
        return Prompt((message,), self.class_name, self.max_tokens)


@dataclass(frozen=True)
class WorkloadRequest:
    """One request of a workload.

    Attributes:
        request_id: its place in the workload, from 0.
        class_name: kind of request, for results by class.
        priority: lower is served earlier by policies that know priorities.
        scheduled_arrival_s: seconds from the start of the clock; None: due after `after`, or in a
            closed loop when any earlier request ends.
        prompt: text, chat messages or token ids; None: synthetic, `prompt_tokens` long.
        prompt_tokens: length in tokens; None until a text has been tokenised.
        max_tokens: most output tokens; None allows as many as fit.
        ignore_eos: produce `max_tokens` whatever the model says.
        seed: 32-bit sampling seed.
        segments: what a synthetic prompt shares with others; None: nothing.
        predicted_tokens: output tokens that a predictor expects; None: there is none.
        after: an earlier request; this one is due `think_s` after its end. None: it waits for none.
        think_s: seconds from the end of `after`.
    """

    request_id: int
    class_name: str
    priority: int
    scheduled_arrival_s: float | None
    prompt: PromptContent | None
    prompt_tokens: int | None
    max_tokens: int | None
    ignore_eos: bool
    seed: int
    segments: PromptSegments | None = None
    predicted_tokens: int | None = None
    after: int | None = None
    think_s: float = 0.0


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, and how they came about.

    Attributes:
        requests: R requests; `requests[i].request_id == i`. Those of known times are in order.
        arrivals: the arrival process; an engine needs it for the concurrency of a closed loop.
        seed: the seed everything random was derived from.
    """

    requests: tuple[WorkloadRequest, ...]
    arrivals: Arrivals
    seed: int

    def __post_init__(self) -> None:
        ids = [request.request_id for request in self.requests]
        require(ids == list(range(len(ids))), "request_id", ids[:8], "number them 0, 1, 2, ...")
        for one in self.requests:
            if one.after is not None:
                require(0 <= one.after < one.request_id and one.scheduled_arrival_s is None,
                        "after", one.after, "name an earlier request, and give no arrival time")
        before = [one.after for one in self.requests if one.after is not None]
        require(len(set(before)) == len(before), "after", before[:8],
                "at most one request may wait for another")
        times = [one.scheduled_arrival_s for one in self.requests if one.after is None]
        known = [time for time in times if time is not None]
        require(known == sorted(known) and None not in times[: len(known)],
                "scheduled_arrival_s", times[:8], "put requests in order of arrival, None last")
        require(len(known) == len(times) or self.concurrency is not None,
                "scheduled_arrival_s", None, "only a closed loop leaves arrivals open; give times")

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[WorkloadRequest]:
        return iter(self.requests)

    @property
    def concurrency(self) -> int | None:
        """Requests in the system at a time in a closed loop, else None."""
        return self.arrivals.concurrency

    @property
    def offered_rate(self) -> float | None:
        """Mean arrivals per second, None where the process has no rate."""
        return self.arrivals.rate
