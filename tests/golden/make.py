"""Choose a sample of recorded traces: `python tests/golden/make.py RECORDED OUT COUNT`.

A small cover: traces are taken one by one, each time the one that shows most rules and knob values
which fewer than three chosen ones show, shorter traces first among equals.
"""

import gzip
import json
import sys
from collections import Counter
from pathlib import Path

from cbjax.parity.traces import compact, load


def features(recorded: dict) -> set[str]:
    """What a trace shows: coarse knob values, and the events that occur."""
    found = {f"block_size={recorded['block_size']}"}
    for name, value in recorded["knobs"].items():
        large = isinstance(value, int) and not isinstance(value, bool) and value > 8
        found.add(f"{name}={'large' if large else value}")
    for step in recorded["iterations"]:
        found |= {name for name, value in step.items() if value}
        found |= {f"two {name}" for name in ("new", "preempted") if len(step.get(name, ())) > 1}
    if any(one["output_tokens"] == 1 for one in recorded["requests"]):
        found.add("one output token")
    for key in ("scheduler", "error", "hang", "edge"):
        found.add(f"{key}={recorded.get(key)}")
    return found


def choose(traces: list[dict], count: int) -> list[dict]:
    """The sample, in the order of the file."""
    left = sorted(traces, key=lambda one: len(json.dumps(one)))
    seen: Counter[str] = Counter()
    chosen = []
    for _ in range(min(count, len(left))):
        best = max(left, key=lambda one: sum(seen[name] < 3 for name in features(one)))
        seen.update(features(best))
        left.remove(best)
        chosen.append(best)
    return sorted(chosen, key=lambda one: one["seed"])


def main() -> None:
    """Write the sample in the compact form."""
    source, target, count = sys.argv[1:]
    with gzip.GzipFile(target, "wb", mtime=0) as out:
        for recorded in choose(list(load(Path(source))), int(count)):
            line = json.dumps(compact(recorded), separators=(",", ":"), ensure_ascii=False)
            out.write(line.encode() + b"\n")
    print(f"{target}: {Path(target).stat().st_size} bytes")


if __name__ == "__main__":
    main()
