"""Other loads from one trace: a part of it, faster, shorter, without its clock's ticks.

Every function takes a trace and returns another; none draws anything that a later one changes, so
that one seed gives one pattern at every rate (common random numbers).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cbjax.workload.arrivals import Arrivals, arrival_times
from cbjax.workload.bad_rows import BadRows
from cbjax.workload.checks import require
from cbjax.workload.segments import Segments
from cbjax.workload.streams import Stream, generator
from cbjax.workload.trace import Trace


def cut(trace: Trace, start_s: float = 0.0, duration_s: float | None = None) -> Trace:
    """The requests of a window, which begins at 0 in the result.

    Args:
        trace: to cut.
        start_s: of the window, from the start of the trace.
        duration_s: of the window; None: to the end of the trace.

    Raises:
        ValueError: nothing arrives in the window.
    """
    require(start_s >= 0, "start_s", start_s, "use seconds from 0")
    require(duration_s is None or duration_s > 0, "duration_s", duration_s,
            "use seconds above 0, or leave it out")
    end_s = np.inf if duration_s is None else start_s + duration_s
    rows = np.flatnonzero((trace.arrival_s >= start_s) & (trace.arrival_s < end_s))
    last = trace.arrival_s[-1] if len(trace) else 0.0
    require(len(rows), "start_s", start_s,
            f"no request arrives in this window; the trace has {len(trace)} until {last:g} s")
    kept = trace.take(rows)
    covered = trace.duration_s - start_s if duration_s is None else duration_s
    return replace(kept, arrival_s=kept.arrival_s - start_s, duration_s=covered)


def first(trace: Trace, count: int) -> Trace:
    """The first `count` requests, or all if there are fewer."""
    require(count >= 1, "num_requests", count, "use at least 1")
    if count >= len(trace):
        return trace
    # The time up to the next arrival belongs to them, so that the rate stays.
    return replace(trace.take(np.arange(count)), duration_s=float(trace.arrival_s[count]))


def spread_ticks(trace: Trace, seed: int, tick_s: float | None = None) -> Trace:
    """Undo the rounding of a coarse clock: requests fall anywhere within their tick.

    Requests of one tick keep their order. A trace with a fine clock hardly changes.

    Args:
        trace: with stamps that were rounded down to ticks.
        seed: of where they fall.
        tick_s: the tick; None: the least step between two different stamps.
    """
    require(tick_s is None or tick_s > 0, "tick_s", tick_s, "use seconds above 0, or leave it out")
    stamps, tick_of = np.unique(trace.arrival_s, return_inverse=True)
    if tick_s is None:
        if len(stamps) < 2:
            return trace
        tick_s = float(np.diff(stamps).min())
    drawn = generator(seed, Stream.TICKS).random(len(trace)) * tick_s
    order = np.lexsort((drawn, tick_of))  # sorted within each tick
    return replace(
        trace, arrival_s=np.sort(trace.arrival_s + drawn[order]),
        duration_s=trace.duration_s + tick_s,
    )


def scale_rate(trace: Trace, rate: float) -> Trace:
    """The same pattern of arrivals, stretched or compressed to a mean rate.

    Args:
        trace: one that covers some time.
        rate: requests per second.

    Raises:
        ValueError: the trace has no rate.
    """
    require(0 < rate < np.inf, "rate", rate, "use a finite number above 0")
    require(trace.rate is not None, "rate", rate,
            "all requests of this trace arrive at once, so there is nothing to stretch; draw "
            "arrivals instead, e.g. poisson")
    assert trace.rate is not None
    factor = trace.rate / rate
    return replace(
        trace, arrival_s=trace.arrival_s * factor, duration_s=trace.duration_s * factor
    )


def scale_lengths(trace: Trace, prompt: float = 1.0, output: float = 1.0) -> Trace:
    """Longer or shorter prompts and outputs, at least one token; fractions are rounded up.

    What prompts share stays shared: the ends of segments are scaled, so with blocks of 512 tokens
    and `prompt=1/32` they are blocks of 16.
    """
    for field, factor in (("prompt_scale", prompt), ("output_scale", output)):
        require(0 < factor < np.inf, field, factor, "use a finite number above 0")
    return _with_lengths(
        trace, _scaled(trace.prompt_tokens, prompt), _scaled(trace.output_tokens, output),
        trace.segments and trace.segments.with_ends(_scaled(trace.segments.ends(), prompt)),
    )


def cut_lengths(
    trace: Trace, prompt: int | None = None, output: int | None = None
) -> Trace:
    """Cut prompts and outputs that are longer than these many tokens; None: no bound."""
    for field, most in (("max_prompt_tokens", prompt), ("max_output_tokens", output)):
        require(most is None or most >= 1, field, most, "use at least 1, or leave it out")
    segments = trace.segments
    if segments is not None and prompt is not None:
        segments = segments.with_ends(np.minimum(segments.ends(), prompt))
    return _with_lengths(
        trace, np.minimum(trace.prompt_tokens, prompt or np.iinfo(np.int32).max),
        np.minimum(trace.output_tokens, output or np.iinfo(np.int32).max), segments,
    )


def with_arrivals(trace: Trace, arrivals: Arrivals, seed: int) -> Trace:
    """The requests of a trace at other times: drawn ones, or its own at another rate.

    Raises:
        ValueError: a closed loop, which has no times before the run.
    """
    if arrivals.kind == "recorded":
        return trace if arrivals.rate is None else scale_rate(trace, arrivals.rate)
    require(arrivals.kind != "closed_loop", "arrivals.kind", arrivals.kind,
            "a closed loop has no times before the run; use it with a workload, not a trace")
    times = np.array(arrival_times(arrivals, len(trace), seed), np.float64)
    return replace(trace, arrival_s=times, duration_s=float(times[-1]) if len(times) else 0.0)


def merge(traces: Sequence[Trace]) -> Trace:
    """Several traces at once, on one clock; nothing is shared between them.

    Args:
        traces: at least one. All or none have segments.
    """
    require(traces, "traces", traces, "give at least one")
    if len(traces) == 1:
        return traces[0]
    require(all(trace.after is None for trace in traces), "traces", [one.name for one in traces],
            "turns that wait for answers cannot be merged; give conversations a token_s")
    names = tuple(dict.fromkeys(name for trace in traces for name in trace.class_names))
    classes = [
        np.array([names.index(name) for name in trace.class_names], np.int32)[trace.classes]
        for trace in traces
    ]

    def joined(column: str) -> np.ndarray:
        return np.concatenate([getattr(trace, column) for trace in traces])

    whole = Trace(
        name="+".join(trace.name for trace in traces),
        arrival_s=np.zeros(sum(map(len, traces))),  # in order below
        prompt_tokens=joined("prompt_tokens"), output_tokens=joined("output_tokens"),
        duration_s=max(trace.duration_s for trace in traces), class_names=names,
        classes=np.concatenate(classes), priority=joined("priority"),
        segments=_joined([trace.segments for trace in traces]),
        bad_rows=sum((trace.bad_rows for trace in traces), BadRows()),
    )
    times = joined("arrival_s")
    order = np.argsort(times, kind="stable")
    return replace(whole.take(order), arrival_s=times[order])


def _joined(parts: Sequence[Segments | None]) -> Segments | None:
    known = [part for part in parts if part is not None]
    require(len(known) in (0, len(parts)), "segments", None,
            "some of these traces know what their prompts share and some do not; merge like ones")
    if not known:
        return None
    # The ids of each trace move behind those of the one before.
    moved, next_id = [], 0
    for part in known:
        low, high = (int(part.ids.min()), int(part.ids.max())) if part.ids.size else (0, -1)
        moved.append(part.ids - low + next_id)
        next_id += high - low + 1
    sizes = [len(part.ids) for part in known]
    begins = np.cumsum([0, *sizes[:-1]])
    offsets = [part.offsets[:-1] + at for part, at in zip(known, begins, strict=True)]
    return Segments(
        np.concatenate([*offsets, [sum(sizes)]]), np.concatenate(moved),
        np.concatenate([part.lengths for part in known]),
    )


def _scaled(lengths: np.ndarray, factor: float) -> np.ndarray:
    if factor == 1.0:
        return lengths
    # A factor such as 1/3 is not exact: what is whole up to rounding stays whole.
    return np.maximum(np.ceil(lengths * factor - 1e-6), 1).astype(np.int64)


def _with_lengths(
    trace: Trace, prompt: np.ndarray, output: np.ndarray, segments: Segments | None
) -> Trace:
    return replace(
        trace, prompt_tokens=prompt.astype(np.int32), output_tokens=output.astype(np.int32),
        segments=segments,
    )
