"""How a peer is driven: one process of its own environment, a line of JSON in, a line out.

The first line is the settings; the peer loads and answers `{"ready": pid}`, the process whose tree
does the computing. Each further line is a list of requests; the peer serves them and answers with
what came out and when. An error is answered as `{"error": text}`. This file is imported in every
peer's environment, so it needs the standard library alone.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

Settings = dict[str, Any]  # mode, dtype, threads, sequences, longest, hf (folder), gguf (file)
Requests = list[dict[str, Any]]  # prompt: token ids, outputs: how many to make
Answer = dict[str, Any]  # tokens: ids per request, moments: seconds of each, or None if untold
Serve = Callable[[Requests], Answer]


def peer(load: Callable[[Settings], tuple[int, Serve]]) -> None:
    """Run a peer until its input ends.

    Args:
        load: makes the server of the settings; returns the process that computes, and how it
            serves requests that are all due now.
    """
    channel = _own_stdout()
    try:
        settings = json.loads(sys.stdin.readline())
        hold_threads(settings["threads"])
        pid, serve = load(settings)
        _say(channel, {"ready": pid})
        for line in sys.stdin:
            start = time.perf_counter()
            answer = serve(json.loads(line))
            _say(channel, answer | {"wall_s": time.perf_counter() - start})
    except Exception:  # whatever it is, the table says it
        _say(channel, {"error": traceback.format_exc()})


def hold_threads(threads: int) -> None:
    """Keep this process, and all that it starts, on so many CPUs; libraries count those."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)


def _own_stdout() -> TextIO:
    """The stream to the driver; what libraries print goes to the standard error from here on."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def _say(channel: TextIO, answer: Answer) -> None:
    channel.write(json.dumps(answer) + "\n")
    channel.flush()
