"""The trace of a config: a recorded one, read and shaped, or drawn conversations."""

from dataclasses import asdict

from cbjax.config import RunConfig
from cbjax.config.schema import SessionsConfig, TraceConfig
from cbjax.workload import (
    Arrivals,
    Lengths,
    Sessions,
    Trace,
    cut,
    cut_lengths,
    first,
    make_sessions,
    read_trace,
    scale_lengths,
    spread_ticks,
)


def shaped_trace(config: RunConfig, arrivals: Arrivals) -> Trace:
    """The requests of `workload.trace` at their recorded times, or of `workload.sessions`.

    Args:
        config: its source is one of the two.
        arrivals: how sessions begin; recorded times are left as they are.

    Raises:
        FileNotFoundError: no file; the text says where there is one.
        ValueError: bad rows, or an impossible setting.
    """
    wanted, seed = config.workload, config.seed
    if wanted.source == "sessions":
        trace = make_sessions(_sessions(wanted.sessions), wanted.sessions.count, arrivals, seed)
    else:
        trace = _recorded(wanted.trace, wanted.path, seed)
    return trace if wanted.num_requests is None else first(trace, wanted.num_requests)


def _recorded(wanted: TraceConfig, path: str | None, seed: int) -> Trace:
    trace = read_trace(
        path, wanted.format, on_bad_row=wanted.on_bad_row,  # type: ignore[arg-type]
        start_s=wanted.start_s, duration_s=wanted.duration_s, limit=wanted.limit, seed=seed,
        **wanted.options,
    )
    if wanted.spread_ticks:
        trace = spread_ticks(trace, seed)
    if wanted.start_s or wanted.duration_s is not None:
        trace = cut(trace, wanted.start_s, wanted.duration_s)
    trace = scale_lengths(trace, wanted.prompt_scale, wanted.output_scale)
    return cut_lengths(trace, wanted.max_prompt_tokens, wanted.max_output_tokens)


def _sessions(wanted: SessionsConfig) -> Sessions:
    fields = asdict(wanted)
    del fields["count"]
    for name in ("turns", "message_lengths", "answer_lengths"):
        fields[name] = Lengths(**fields[name])
    return Sessions(**fields)
