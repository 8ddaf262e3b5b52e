"""Qwen-Bailian: requests to a cloud service with the sharing of their prompts, in blocks of 16.

Times are in seconds. The kind of input (text, search, image, file) is the class of a request.
`chat_id`, `parent_chat_id` and `turn` say which conversation a request continues; what it shares
with it is in `hash_ids` already, so they are not used. Apache-2.0.

Source: Wang et al., KVCache Cache in the Wild, USENIX ATC 2025.
"""

from pathlib import Path

from cbjax.workload.formats import Wanted
from cbjax.workload.formats._hashed import read_hashed
from cbjax.workload.trace import Trace

DOWNLOAD = (
    "download qwen_traceA_blksz_16.jsonl or another one from "
    "github.com/alibaba-edu/qwen-bailian-usagetraces-anon (with Git LFS)"
)
BLOCK_TOKENS = 16


def read(path: Path, wanted: Wanted) -> Trace:
    """Read one of the traces; see `cbjax.workload.read_trace`."""
    return read_hashed(
        "qwen_bailian", path, wanted.limit, block=BLOCK_TOKENS, unit_s=1.0, class_field="type"
    )
