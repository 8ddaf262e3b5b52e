"""From columns to requests: a trace as a workload."""

from dataclasses import replace

import numpy as np

from cbjax.workload.arrivals import Arrivals, arrival_times
from cbjax.workload.records import Workload, WorkloadRequest
from cbjax.workload.shaping import with_arrivals
from cbjax.workload.streams import Stream, generator
from cbjax.workload.trace import Trace

_RECORDED = Arrivals("recorded")


def workload_from_trace(
    trace: Trace, *, arrivals: Arrivals = _RECORDED, seed: int = 0
) -> Workload:
    """The requests of a trace, answered with as many tokens as were recorded.

    Args:
        trace: requests with lengths; prompts are made of what they share, else of random tokens.
        arrivals: `recorded` keeps the times, or their pattern at `rate`; other kinds draw their
            own, in the order of the trace.
        seed: of drawn arrivals, of tokens and of sampling.

    Raises:
        ValueError: a rate for a trace whose requests arrive at once.
    """
    times: tuple[float | None, ...]
    if arrivals.kind == "closed_loop":
        times = arrival_times(arrivals, len(trace), seed)
    else:
        trace = with_arrivals(trace, arrivals, seed)
        times = tuple(trace.arrival_s.tolist())
    after = [-1] * len(trace) if trace.after is None else trace.after.tolist()
    think = [0.0] * len(trace) if trace.think_s is None else trace.think_s.tolist()
    if arrivals.kind == "recorded":
        arrivals = replace(arrivals, rate=trace.rate)
    seeds = generator(seed, Stream.SAMPLING).integers(0, 2**32, len(trace), np.uint32).tolist()
    names = [trace.class_names[index] for index in trace.classes.tolist()]
    columns = zip(
        names, trace.priority.tolist(), times, trace.prompt_tokens.tolist(),
        trace.output_tokens.tolist(), seeds, after, think, strict=True,
    )
    requests = tuple(
        WorkloadRequest(
            request_id=place, class_name=name, priority=priority,
            scheduled_arrival_s=time if before < 0 else None,
            prompt=None, prompt_tokens=prompt, max_tokens=output, ignore_eos=True, seed=own,
            segments=None if trace.segments is None else trace.segments.prompt(place),
            after=None if before < 0 else before, think_s=think_s,
        )
        for place, (
            name, priority, time, prompt, output, own, before, think_s
        ) in enumerate(columns)
    )
    return Workload(requests, arrivals, seed)
