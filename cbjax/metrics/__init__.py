"""From events to numbers: the recorder, the tables of a run, and every definition once."""

from cbjax.metrics.events import IterationEvent
from cbjax.metrics.latency import describe, inter_token_gaps, outcome, request_latencies
from cbjax.metrics.recorder import Recorder
from cbjax.metrics.slo import Slo, as_slo, meets
from cbjax.metrics.statistics import (
    Interval,
    batch_means,
    bootstrap_interval,
    mean_interval,
    student_t,
    warmed_up,
)
from cbjax.metrics.summary import summarise
from cbjax.metrics.tables import (
    ITERATION_COLUMNS,
    LEVELS,
    MEMORY_COLUMNS,
    REQUEST_COLUMNS,
    SCHEDULE_COLUMNS,
    Level,
    Tables,
)

__all__ = [
    "ITERATION_COLUMNS",
    "LEVELS",
    "MEMORY_COLUMNS",
    "REQUEST_COLUMNS",
    "SCHEDULE_COLUMNS",
    "Interval",
    "IterationEvent",
    "Level",
    "Recorder",
    "Slo",
    "Tables",
    "as_slo",
    "batch_means",
    "bootstrap_interval",
    "describe",
    "inter_token_gaps",
    "mean_interval",
    "meets",
    "outcome",
    "request_latencies",
    "student_t",
    "summarise",
    "warmed_up",
]
