"""Recorded decisions of the originals: reading them, and replaying them through our policies."""

import gzip
import json
from pathlib import Path
from typing import Any

from cbjax import policies
from cbjax.core.limits import Limits, system
from cbjax.core.log import IterationRecord
from tests.policies.driver import run
from tests.policies.workloads import Request, Workload

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "golden"
SAMPLE = ROOT / "tests" / "golden"

# Wide enough for every recorded workload, so that one program serves all of them.
LIMITS = Limits(
    seats=32, window=64, tokens=512, blocks=1100, blocks_per_sequence=128, inbox=64, context=0
)
FIELDS = (
    "scheduled", "new", "resumed", "preempted", "finished", "free_blocks", "waiting", "running",
)


Trace = dict[str, Any]


def load(path: Path) -> list[Trace]:
    """The traces of a file, one JSON object a line (form: tests/golden/README.md)."""
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def load_vllm(path: Path) -> list[Trace]:
    """The fcfs workloads of a file as recorded, in the project's form.

    Workloads with prefix caching or with a schedule that runs one step ahead are left out.
    """
    traces = []
    for recorded in load(path):
        knobs = dict(recorded["knobs"])
        plain = knobs.pop("policy") == "fcfs" and not (
            knobs.pop("enable_prefix_caching") | knobs.pop("async_scheduling")
        )
        if plain:
            traces.append(_compact(recorded, knobs))
    return traces


def _compact(recorded: dict[str, Any], knobs: dict[str, Any]) -> Trace:
    return dict(
        system=recorded["system"], version=recorded["version"], seed=recorded["seed"],
        knobs=knobs, block_size=recorded["block_size"], num_blocks=recorded["usable_blocks"],
        max_length=recorded["max_model_len"],
        requests=[
            [request["arrival_iteration"], request["prompt_tokens"], request["output_tokens"]]
            for request in recorded["requests"]
        ],
        iterations=[[step[name] for name in FIELDS] for step in recorded["iterations"]],
    )


def replay(trace: Trace) -> list[IterationRecord]:
    """Our decisions on the recorded workload."""
    workload = Workload(
        tuple(Request(id, *numbers) for id, numbers in enumerate(trace["requests"]))
    )
    numbers = system(
        LIMITS, block_size=trace["block_size"], num_blocks=trace["num_blocks"],
        max_length=trace["max_length"],
    )
    return run(policies.vllm(**trace["knobs"]), workload, LIMITS, numbers)


def differences(trace: Trace, log: list[IterationRecord]) -> list[str]:
    """Every field of every iteration in which our decisions and the recorded ones differ."""
    found = []
    if len(log) != len(trace["iterations"]):
        found.append(f"{len(log)} iterations instead of {len(trace['iterations'])}")
    for ours, theirs in zip(log, trace["iterations"], strict=False):
        for name, recorded in zip(FIELDS, theirs, strict=True):
            mine = json.loads(json.dumps(getattr(ours, name)))
            if mine != recorded:
                found.append(
                    f"seed {trace.get('seed')} iteration {ours.iteration} {name}: {mine} instead "
                    f"of {recorded}"
                )
    return found
