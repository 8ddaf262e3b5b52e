"""Between columns and requests: a trace as a workload for an engine, a workload as columns."""

from dataclasses import replace

import numpy as np

from cbjax.workload.arrivals import Arrivals, arrival_times
from cbjax.workload.checks import require
from cbjax.workload.records import Workload, WorkloadRequest
from cbjax.workload.segments import of_prompts
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
    if arrivals.kind == "recorded":
        arrivals = replace(arrivals, rate=trace.rate)
    seeds = generator(seed, Stream.SAMPLING).integers(0, 2**32, len(trace), np.uint32).tolist()
    names = [trace.class_names[index] for index in trace.classes.tolist()]
    columns = zip(
        names, trace.priority.tolist(), times, trace.prompt_tokens.tolist(),
        trace.output_tokens.tolist(), seeds, strict=True,
    )
    requests = tuple(
        WorkloadRequest(
            request_id=place, class_name=name, priority=priority, scheduled_arrival_s=time,
            prompt=None, prompt_tokens=prompt, max_tokens=output, ignore_eos=True, seed=own,
            segments=None if trace.segments is None else trace.segments.prompt(place),
        )
        for place, (name, priority, time, prompt, output, own) in enumerate(columns)
    )
    return Workload(requests, arrivals, seed)


def trace_from_workload(workload: Workload) -> Trace:
    """The columns of a workload, for a simulator.

    Args:
        workload: with known prompt lengths and bounds on its outputs, which count as their
            lengths; its arrivals are those of an open loop.

    Raises:
        ValueError: a request lacks a time, a prompt length or a bound.
    """
    times, prompts, outputs = [], [], []
    for request in workload:
        for field in ("scheduled_arrival_s", "prompt_tokens", "max_tokens"):
            require(getattr(request, field) is not None, field, None,
                    f"request {request.request_id} needs one: give open arrivals, synthetic or "
                    "tokenised prompts, and a bound on every output")
        times.append(request.scheduled_arrival_s)
        prompts.append(request.prompt_tokens)
        outputs.append(request.max_tokens)
    names = list(dict.fromkeys(request.class_name for request in workload))
    places = {name: place for place, name in enumerate(names)}
    arrival_s = np.array(times, np.float64)
    return Trace(
        name="workload", arrival_s=arrival_s, prompt_tokens=np.array(prompts, np.int32),
        output_tokens=np.array(outputs, np.int32),
        duration_s=len(workload) / workload.offered_rate if workload.offered_rate
        else float(np.ptp(arrival_s)),
        class_names=tuple(names),
        classes=np.array([places[request.class_name] for request in workload], np.int32),
        priority=np.array([request.priority for request in workload], np.int32),
        segments=of_prompts([request.segments for request in workload]),
    )
