"""Workloads: which requests arrive when, with which prompts and how long their outputs may be."""

from cbjax.workload.arrivals import Arrivals, arrival_times
from cbjax.workload.build import make_workload, workload_from_prompts
from cbjax.workload.builtin import BUILTIN_CLASSES, BUILTIN_LANGUAGES, builtin_prompts
from cbjax.workload.lengths import Lengths, draw_lengths
from cbjax.workload.mix import RequestClass, assign_classes
from cbjax.workload.prompts import BadRow, PromptFile, read_prompts
from cbjax.workload.records import Message, Prompt, PromptContent, Workload, WorkloadRequest
from cbjax.workload.streams import Stream, generator
from cbjax.workload.tokens import synthetic_token_ids, tokenise_workload

__all__ = [
    "BUILTIN_CLASSES",
    "BUILTIN_LANGUAGES",
    "Arrivals",
    "BadRow",
    "Lengths",
    "Message",
    "Prompt",
    "PromptContent",
    "PromptFile",
    "RequestClass",
    "Stream",
    "Workload",
    "WorkloadRequest",
    "arrival_times",
    "assign_classes",
    "builtin_prompts",
    "draw_lengths",
    "generator",
    "make_workload",
    "read_prompts",
    "synthetic_token_ids",
    "tokenise_workload",
    "workload_from_prompts",
]
