"""The promise: a request's tokens do not depend on how it was scheduled.

Greedy and sampled, in float32, every policy, budget, block size, ladder and preemption pattern must
give the tokens of the request decoded alone.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from cbjax import policies
from cbjax.core.ladder import ladder
from cbjax.engine import Engine
from cbjax.models import load_model
from tests.engine.serving import mixed_requests, serve_all, small_ladder, smollm2_or_skip

SEATS = 8
LENGTH = 64
TOKENS = 256
LONG_LADDER = ladder(TOKENS, SEATS, mixed=[24, 64])
AMPLE = 4096  # token positions of a pool that never runs short
SCARCE = 80  # hardly more than the longest request


REAL = pytest.param("smollm2", marks=[pytest.mark.slow, pytest.mark.real_model])


@pytest.fixture(scope="module", params=["tiny", REAL])
def model(request):
    if request.param == "smollm2":
        return smollm2_or_skip()
    return load_model(request.param)


@pytest.fixture(scope="module")
def requests(model):
    return mixed_requests(40, model.tokenizer.vocab_size, longest_prompt=48, most_output=16, seed=7)


def vllm(budget: int = 32, **knobs):
    return policies.vllm(max_num_batched_tokens=budget, max_num_seqs=SEATS, **knobs)


def engine_for(model, policy, *, block_size=16, positions=AMPLE, rungs=None, debug=False, swap=0):
    # The same limits and ladder wherever the case allows it, so that programs are shared.
    return Engine(
        model, policy=policy, block_size=block_size, num_blocks=positions // block_size,
        swap_blocks=swap, max_length=LENGTH, iteration_tokens=TOKENS,
        ladder=rungs or small_ladder(TOKENS, SEATS), debug=debug,
    )


@pytest.fixture(scope="module")
def alone(model, requests):
    """The tokens of each request decoded alone."""
    served = serve_all(engine_for(model, vllm()), requests, at_once=1)
    assert served.preemptions == 0
    return served.tokens


def test_the_requests_are_not_trivial(alone, requests, model):
    assert len(set(alone)) == len(alone)
    assert len({token for tokens in alone for token in tokens}) > 50
    repeated = [tokens for tokens in alone if len(tokens) > 4 and len(set(tokens)) == 1]
    assert not repeated


def test_decoding_alone_follows_the_reference_logits(model, alone, requests):
    engine = engine_for(model, vllm())
    for ask, tokens in list(zip(requests, alone, strict=True))[:6:2]:
        sequence = ask.prompt + tokens
        padded = np.zeros(LENGTH, np.int32)
        padded[: len(sequence)] = sequence
        best = engine.logits(padded)[:, : model.tokenizer.vocab_size].argmax(axis=1)
        assert tuple(best[len(ask.prompt) - 1 : len(sequence) - 1]) == tokens


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("budget 8", lambda model: engine_for(model, vllm(8))),
        ("budget 32", lambda model: engine_for(model, vllm(32))),
        ("budget 256", lambda model: engine_for(model, vllm(256))),
        ("block size 1", lambda model: engine_for(model, vllm(), block_size=1)),
        ("block size 4", lambda model: engine_for(model, vllm(), block_size=4)),
        ("block size 64", lambda model: engine_for(model, vllm(), block_size=64)),
        ("long ladder", lambda model: engine_for(model, vllm(), rungs=LONG_LADDER)),
        ("static padded", lambda model: engine_for(model, policies.static(SEATS, "padded"))),
        ("static ragged", lambda model: engine_for(model, policies.static(SEATS, "ragged"))),
        (
            "static at end",
            lambda model: engine_for(model, policies.static(SEATS, "ragged", delivery="at_end")),
        ),
        ("orca", lambda model: engine_for(model, policies.orca(SEATS))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tokens_do_not_depend_on_scheduling(model, requests, alone, name, build):
    assert serve_all(build(model), requests).tokens == alone


@pytest.mark.parametrize("block_size", [4, 16])
def test_tokens_survive_preemption(model, requests, alone, block_size):
    """Recompute prefills prompt and outputs; nothing is lost or counted twice (FAULTS B1, F1)."""
    policy = vllm(scheduler_reserve_full_isl=False)
    engine = engine_for(model, policy, block_size=block_size, positions=SCARCE, debug=True)
    served = serve_all(engine, requests)
    assert served.preemptions > 20
    assert served.tokens == alone


def chunks(name: str, **knobs):
    return policies.get(name)(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS, **knobs)


# Every system, in the ways in which it treats running requests differently.
EVERY_SYSTEM = {
    "orca reserving all": lambda: policies.orca(SEATS, reservation="max"),
    "triton": lambda: policies.triton(max_batch_size=SEATS),
    "vllm by priority": lambda: vllm(policy="priority", scheduler_reserve_full_isl=False),
    "vllm 0.11": lambda: chunks("vllm_0_11"),
    "vllm v0": lambda: chunks("vllm_v0"),
    "sarathi": lambda: policies.sarathi(max_num_seqs=SEATS, chunk_size=32),
    "sarathi alternating": lambda: policies.sarathi(
        scheduler="simple_chunking", max_num_seqs=SEATS, chunk_size=32
    ),
    "sglang": lambda: policies.sglang(max_running_requests=SEATS, chunked_prefill_size=32),
    "sglang one by one": lambda: policies.sglang(
        max_running_requests=SEATS, chunked_prefill_size=32, disable_overlap_schedule=True,
        enable_mixed_chunk=True, schedule_conservativeness=0.0,
    ),
    "tensorrt_llm": lambda: policies.tensorrt_llm(max_batch_size=SEATS, max_num_tokens=TOKENS),
    "tensorrt_llm evicting": lambda: policies.tensorrt_llm(
        max_batch_size=SEATS, max_num_tokens=32, enable_chunked_prefill=True,
        capacity_scheduler_policy="MAX_UTILIZATION",
    ),
    "transformers": lambda: policies.transformers(
        max_batch_tokens=32, max_requests_per_batch=SEATS, scheduler_type="prefill_first"
    ),
    "transformers ahead": lambda: policies.transformers(
        max_batch_tokens=32, max_requests_per_batch=SEATS, use_async_batching=True
    ),
    "tgi v2": lambda: policies.tgi(
        version="v2", max_batch_prefill_tokens=TOKENS, max_batch_size=SEATS
    ),
    "llama_cpp": lambda: policies.llama_cpp(n_parallel=SEATS, kv_unified=True, n_batch=TOKENS),
    "ollama": lambda: policies.ollama(num_parallel=SEATS, num_batch=TOKENS),
    "composed, most blocks go": lambda: chunks("composed", victim="most_blocks"),
    "tgi v3": lambda: policies.tgi(max_batch_prefill_tokens=32, max_batch_size=SEATS),
}
WITH_WEIGHTS = {"sarathi", "sglang", "tensorrt_llm evicting"}
# One of each kind; the others run in the slow suite.
QUICK = {
    "vllm by priority", "sarathi", "sglang", "tensorrt_llm evicting", "transformers ahead",
    "tgi v2", "llama_cpp",
}
NEVER_PREEMPT = {
    "orca reserving all", "triton", "tensorrt_llm", "tgi v2", "tgi v3", "ollama",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in sorted(EVERY_SYSTEM)
    ],
)
def test_every_system_gives_the_same_tokens(request, model, requests, alone, name):
    """With room for all, and with a pool so small that those which preempt must."""
    if "smollm2" in request.node.name and name not in WITH_WEIGHTS:
        pytest.skip(f"with real weights only {sorted(WITH_WEIGHTS)}, to save time")
    assert serve_all(engine_for(model, EVERY_SYSTEM[name]()), requests).tokens == alone
    # Ollama's slots own a whole context each.
    positions = SEATS * LENGTH if name == "ollama" else SCARCE
    served = serve_all(engine_for(model, EVERY_SYSTEM[name](), positions=positions), requests)
    assert served.tokens == alone
    assert (served.preemptions == 0) == (name in NEVER_PREEMPT)


def test_every_policy_is_among_them():
    built = {build().name for build in EVERY_SYSTEM.values()} | {"static"}
    assert set(policies.names) <= built


def test_a_corrupted_block_is_noticed(model, requests, alone):
    engine = engine_for(model, vllm())

    def corrupt(iteration: int) -> None:
        if iteration == 3:
            table = np.asarray(engine.scheduler.state.blocks.tables)
            block = table[table >= 0][0]
            keys = engine.executor.keys
            engine.executor.keys = keys.at[:, block].set(jnp.ones((), keys.dtype))

    assert serve_all(engine, requests, after_step=corrupt).tokens != alone


def test_a_token_keeps_its_key_when_max_tokens_starts_again(request, model, requests, alone):
    """The fault lengthens answers; every token is drawn as in one long answer."""
    if "smollm2" in request.node.name:
        pytest.skip("keys do not depend on weights, and long answers take minutes with real ones")
    policy = policies.sarathi(chunk_size=32, max_num_seqs=SEATS, faithful=True)
    served = serve_all(engine_for(model, policy, positions=192, swap=12), requests)
    assert served.preemptions > 0
    longer = [len(ours) > len(theirs) for ours, theirs in zip(served.tokens, alone, strict=True)]
    sampled = [bool(ask.settings.get("temperature")) for ask in requests]
    assert any(one and other for one, other in zip(longer, sampled, strict=True))
    engine = engine_for(model, vllm())
    for ask, tokens in zip(requests, served.tokens, strict=True):
        whole = ask.settings | dict(max_tokens=LENGTH)
        again = engine.generate([ask.prompt], **whole)[0].token_ids
        assert tokens == again[: len(tokens)]
