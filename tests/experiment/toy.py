"""Overrides that shrink every experiment to seconds without changing what it is."""

import json
from pathlib import Path

import cbjax
from cbjax.config import Experiment

SEARCHED = [
    "seats=4", "workload.num_requests=24", "study.search.precision=0.5", "study.search.most=64",
]
SMALL = {
    "quickstart": [
        "model=tiny", "ladder=single", "workload.num_requests=4", "seats=2", "budget=128",
        "iteration_tokens=128", "model.max_length=128", "kv.num_blocks=16",
        "workload.max_tokens_by_class={short_answer:3,long_prompt:3,long_generation:3}",
    ],
    "budget_block_grid": [
        "budget=8,16", "kv.block_size=4", "seats=2", "ladder=single", "workload.num_requests=4"
    ],
    "decode_stall": [
        "model=tiny", "ladder=single", "model.max_length=64",
        "kv.num_blocks=40", "workload.requests.long_prompt.prompt_tokens=40",
    ],
    "orca_x_paging": ["seats=2", "ladder=single", "workload.num_requests=4"],
    "kv_waste": ["seats=2", "ladder=single", "workload.num_requests=2"],
    "policies": [
        "model=tiny", "ladder=single", "workload.num_requests=4", "seats=2", "budget=128",
        "iteration_tokens=128", "model.max_length=128", "kv.num_blocks=32",
        "workload.max_tokens_by_class={short_answer:3,long_prompt:3,long_generation:3}",
    ],
    "published": [
        "workload.num_requests=8", "study.search.most=2", "study.search.precision=0.5",
    ],
    "fidelity": [
        "model=tiny", "ladder=single", "seats=2", "budget=16", "workload.num_requests=6",
        "workload.arrivals.rate=20,500", "study.fit.loads=[20]", "model.max_length=224",
    ],
    "load_curve": ["seats=4", "workload.num_requests=24", "workload.arrivals.rate=2,400"],
    "closed_loop": ["seats=4", "workload.num_requests=24", "workload.arrivals.concurrency=1,8"],
    "batching_modes": ["seats=4", "workload.num_requests=24", "workload.arrivals.rate=0.5,400"],
    "token_budget": ["seats=4", "workload.num_requests=24", "budget=64,512"],
    "concurrency": ["seats=2,8", "kv.num_blocks=600", "workload.num_requests=24"],
    "capacity": [*SEARCHED, "policy=vllm,orca"],
    "plan": [*SEARCHED, "policy=vllm", "budget=512,2048", "kv.block_size=16", "study.flags=1"],
    "ladder": [
        "model=tiny", "isolate=false", "backend.cold_compile=false", "seats=4", "budget=16",
        "workload.num_requests=4", "workload.arrivals.rate=50", "model.max_length=224",
    ],
    "kv_block_size": [
        "model=tiny", "seats=2", "budget=16", "workload.num_requests=4",
        "workload.arrivals.rate=50", "kv.block_size=4,64",
    ],
    "megastep": [
        "model=tiny", "seats=2", "budget=16", "iteration_tokens=16", "workload.num_requests=3",
        "backend.megastep=1,4",
    ],
    "ladder_load": ["seats=4", "workload.num_requests=24", "workload.arrivals.rate=4"],
    "block_context": ["seats=4", "workload.num_requests=24", "kv.block_size=4,64"],
    "admission": ["seats=4", "workload.num_requests=24", "kv.num_blocks=520,600"],
    "victims": ["seats=4", "workload.num_requests=24", "kv.num_blocks=520"],
    "burstiness": [
        "seats=4", "workload.num_requests=24", "workload.arrivals.rate=8",
        "workload.arrivals.burstiness=0.25,1",
    ],
    "prefix_sharing": [
        "seats=4", "workload.sessions.count=6", "workload.sessions.turns.value=1,3",
        "kv.num_blocks=300",
    ],
    "priorities": [
        "seats=4", "workload.num_requests=24", "workload.arrivals.rate=2,8", "window=32",
    ],
    "length_prediction": [
        "seats=4", "workload.num_requests=24", "workload.prediction_error=0,1", "window=32",
    ],
    "real_prompts": [
        "model=tiny", "ladder=single", "seats=2", "budget=32", "workload.max_tokens=3"
    ],
}


def toy(name: str, folder: Path, *overrides: str) -> Experiment:
    """An experiment at toy size, with its results and any file it needs under `folder`."""
    given = [*SMALL.get(name, []), f"results_dir={folder / 'results'}", *overrides]
    if name == "real_prompts":
        prompts = folder / "prompts.jsonl"
        prompts.write_text(json.dumps({"prompt": "One?"}) + "\n" + json.dumps("Two?") + "\n")
        given.append(f"workload.path={prompts}")
    return cbjax.load_config(name, given)
