"""Hugging Face transformers: `ContinuousBatchingManager`, which has a length for each request."""

import os

from benchmarks.peers.protocol import Answer, Requests, Serve, Settings, peer

INSTALL = "pip install torch==2.13.0 transformers==5.24.0"
MODES = ("",)
PAGE, BUDGET = 256, 256  # tokens per page (its default) and per batch (as ours)


def load(settings: Settings) -> tuple[int, Serve]:
    """A running manager with pages for full seats of longest sequences."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        settings["hf"], dtype=getattr(torch, settings["dtype"]), attn_implementation="sdpa"
    )
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=settings["sequences"] * -(-settings["longest"] // PAGE),
            max_batch_tokens=BUDGET, max_requests_per_batch=settings["sequences"],
            allow_block_sharing=False,
        ),
    )
    manager.start()
    return os.getpid(), lambda requests: serve(manager, requests)


def serve(manager, requests: Requests) -> Answer:
    """Hand all requests in, take the results as they come."""
    from time import perf_counter

    start = perf_counter()
    places = {
        manager.add_request(
            one["prompt"], max_new_tokens=one["outputs"], eos_token_id=-1, record_timestamps=True
        ): at
        for at, one in enumerate(requests)
    }
    tokens: list[list[int]] = [[] for _ in requests]
    moments: list[list[float] | None] = [None for _ in requests]
    left = set(places)
    while left:
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError(f"the manager stopped with {len(left)} requests left")
            continue
        if result.error:
            raise RuntimeError(result.error)
        left.discard(result.request_id)
        at = places[result.request_id]
        tokens[at] = list(result.generated_tokens)
        moments[at] = result.timestamps and [one - start for one in result.timestamps]
    return {"tokens": tokens, "moments": moments}


if __name__ == "__main__":
    peer(load)
