"""Workloads: which requests arrive when, with which prompts and how long their outputs may be.

Drawn (`make_workload`, `make_sessions`), from prompts (`workload_from_prompts`), or recorded by
others (`read_trace`). A `Trace` holds NumPy columns, as read and shaped; a `Workload` holds one
record per request, as engine and simulator are sent it.
"""

from cbjax.workload.arrivals import Arrivals, arrival_times
from cbjax.workload.bad_rows import BadRow, BadRows
from cbjax.workload.build import make_workload, workload_from_prompts
from cbjax.workload.builtin import BUILTIN_CLASSES, BUILTIN_LANGUAGES, builtin_prompts
from cbjax.workload.formats import read_trace
from cbjax.workload.lengths import Lengths, draw_lengths
from cbjax.workload.mix import RequestClass, assign_classes
from cbjax.workload.predictions import with_predictions
from cbjax.workload.prompts import PromptFile, read_prompts
from cbjax.workload.records import Message, Prompt, PromptContent, Workload, WorkloadRequest
from cbjax.workload.replay import workload_from_trace
from cbjax.workload.segments import PromptSegments, Segments, segment_token_ids
from cbjax.workload.sessions import Sessions, make_sessions
from cbjax.workload.shaping import (
    cut,
    cut_lengths,
    first,
    merge,
    scale_lengths,
    scale_rate,
    spread_ticks,
    with_arrivals,
)
from cbjax.workload.streams import Stream, generator
from cbjax.workload.tokens import made_up_token_ids, synthetic_token_ids, tokenise_workload
from cbjax.workload.trace import Trace, trace_of_columns

__all__ = [
    "BUILTIN_CLASSES",
    "BUILTIN_LANGUAGES",
    "Arrivals",
    "BadRow",
    "BadRows",
    "Lengths",
    "Message",
    "Prompt",
    "PromptContent",
    "PromptFile",
    "PromptSegments",
    "RequestClass",
    "Segments",
    "Sessions",
    "Stream",
    "Trace",
    "Workload",
    "WorkloadRequest",
    "arrival_times",
    "assign_classes",
    "builtin_prompts",
    "cut",
    "cut_lengths",
    "draw_lengths",
    "first",
    "generator",
    "made_up_token_ids",
    "make_sessions",
    "make_workload",
    "merge",
    "read_prompts",
    "read_trace",
    "scale_lengths",
    "scale_rate",
    "segment_token_ids",
    "spread_ticks",
    "synthetic_token_ids",
    "tokenise_workload",
    "trace_of_columns",
    "with_arrivals",
    "with_predictions",
    "workload_from_prompts",
    "workload_from_trace",
]
