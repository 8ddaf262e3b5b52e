"""Mooncake: requests to Kimi with the sharing of their prompts, in blocks of 512 tokens.

Times are in milliseconds. The conversation trace has ticks of three seconds, about ten requests
each: `spread_ticks` undoes the artificial bursts. A shared last block that is filled in part is not
a hit of a whole block. For small contexts scale the lengths by 1/16 or 1/32, which keeps the
sharing. Apache-2.0.

Source: Qin et al., Mooncake, FAST 2025.
"""

from pathlib import Path

from cbjax.workload.formats import Wanted
from cbjax.workload.formats._hashed import read_hashed
from cbjax.workload.trace import Trace

DOWNLOAD = (
    "download conversation_trace.jsonl, synthetic_trace.jsonl or toolagent_trace.jsonl from "
    "github.com/kvcache-ai/Mooncake (folder FAST25-release/traces)"
)
BLOCK_TOKENS = 512


def read(path: Path, wanted: Wanted) -> Trace:
    """Read one of the traces; see `cbjax.workload.read_trace`."""
    return read_hashed("mooncake", path, wanted.limit, block=BLOCK_TOKENS, unit_s=1e-3)
