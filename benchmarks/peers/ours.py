"""cbjax itself: vLLM's policy, programs compiled before the first request."""

import os

from benchmarks.peers.protocol import Answer, Requests, Serve, Settings, peer

INSTALL = "pip install -e . -c constraints.txt"
MODES = ("",)
BUDGET, BLOCK_SIZE = 256, 16


def load(settings: Settings) -> tuple[int, Serve]:
    """An engine with blocks for full seats of longest sequences."""
    from cbjax import Engine, policies

    sequences, longest = settings["sequences"], settings["longest"]
    engine = Engine.from_pretrained(
        settings["model"], dtype=settings["dtype"], block_size=BLOCK_SIZE, max_length=longest,
        policy=policies.vllm(max_num_batched_tokens=BUDGET, max_num_seqs=sequences),
        num_blocks=sequences * -(-longest // BLOCK_SIZE),
    )
    engine.compile()
    return os.getpid(), lambda requests: serve(engine, requests)


def serve(engine, requests: Requests) -> Answer:
    """Drive the engine to the end of all requests."""
    from time import perf_counter

    start = perf_counter()
    places = {
        engine.submit(one["prompt"], max_tokens=one["outputs"], ignore_eos=True): at
        for at, one in enumerate(requests)
    }
    tokens: list[list[int]] = [[] for _ in requests]
    moments: list[list[float]] = [[] for _ in requests]
    while engine.alive:
        outputs = engine.step()
        now = perf_counter() - start
        for output in outputs:
            at = places[output.request_id]
            tokens[at] += output.token_ids
            moments[at] += [now] * len(output.token_ids)
    return {"tokens": tokens, "moments": moments}


if __name__ == "__main__":
    peer(load)
