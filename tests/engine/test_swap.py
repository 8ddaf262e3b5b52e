"""Swapping: KV goes to the host and comes back, and no token depends on it."""

import numpy as np
import pytest

from cbjax import policies
from cbjax.engine import Engine
from cbjax.models import load_model
from tests.engine.serving import mixed_requests, serve_all, small_ladder

SEATS, LENGTH, TOKENS, SIZE, BLOCKS = 8, 128, 256, 8, 20


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


@pytest.fixture(scope="module")
def requests(model):
    return mixed_requests(30, model.tokenizer.vocab_size, longest_prompt=96, most_output=24, seed=7)


def engine_for(model, policy, blocks=BLOCKS, swap_blocks=0, dtype="float32"):
    return Engine(
        model, policy=policy, block_size=SIZE, num_blocks=blocks, swap_blocks=swap_blocks,
        max_length=LENGTH, iteration_tokens=TOKENS, ladder=small_ladder(TOKENS, SEATS), debug=True,
        dtype=dtype,
    )


def swapping(**knobs):
    return policies.vllm_v0(
        max_num_batched_tokens=TOKENS, max_num_seqs=SEATS, preemption_mode="swap", **knobs
    )


@pytest.fixture(scope="module")
def alone(model, requests):
    policy = policies.vllm(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS)
    return serve_all(engine_for(model, policy, 512), requests, at_once=1).tokens


class Watch:
    """What lay on the host after each iteration: just what the scheduler counts."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.most, self.swaps = engine, 0, 0

    def __call__(self, iteration: int) -> None:
        rows = self.engine.scheduler.state.rows
        held = self.engine.executor.host.held
        blocks = {request: part[0].shape[1] for request, part in held.items()}
        swapped = np.asarray(rows.swapped)
        waits = np.asarray(rows.request)[swapped > 0].tolist()
        assert blocks == dict(zip(waits, swapped[swapped > 0].tolist(), strict=True))
        self.swaps += len(blocks)
        self.most = max(self.most, sum(blocks.values()))


@pytest.mark.parametrize(
    "policy",
    [
        swapping(),
        swapping(enable_chunked_prefill=True),
        policies.transformers(
            max_batch_tokens=TOKENS, max_requests_per_batch=SEATS, allow_block_sharing=True
        ),
    ],
    ids=["vllm v0", "vllm v0 in chunks", "transformers sharing"],
)
def test_tokens_survive_the_host(model, requests, alone, policy):
    engine = engine_for(model, policy, swap_blocks=64)
    engine.compile()
    watch = Watch(engine)
    served = serve_all(engine, requests, after_step=watch)
    assert served.tokens == alone
    assert watch.swaps > 10 and 0 < watch.most <= 64
    assert engine.compilations_since_start == 0
    assert not engine.executor.host.held


@pytest.mark.slow
def test_scales_go_to_the_host_too(model, requests):
    policy = policies.vllm(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS)
    expected = serve_all(engine_for(model, policy, 512, dtype="int8"), requests, at_once=1).tokens
    engine = engine_for(model, swapping(), swap_blocks=64, dtype="int8")
    watch = Watch(engine)
    assert serve_all(engine, requests, after_step=watch).tokens == expected
    assert watch.swaps > 10


def test_what_lies_on_the_host_matters(model, requests, alone):
    engine = engine_for(model, swapping(), swap_blocks=64)

    def spoil(iteration):
        for keys, _ in engine.executor.host.held.values():
            keys[:] = 1

    assert serve_all(engine, requests, after_step=spoil).tokens != alone


def test_an_abort_on_the_host_leaves_nothing_there(model, requests):
    engine = engine_for(model, swapping(), swap_blocks=64)
    for index, ask in enumerate(requests):
        engine.submit(ask.prompt, request_id=index, **ask.settings)
    aborted = set()
    while engine.alive:
        engine.step()
        for request in list(engine.executor.host.held):
            if request in engine.requests:
                engine.abort(request)
                aborted.add(request)
    assert len(aborted) > 3
    engine.submit(requests[0].prompt, **requests[0].settings)
    while engine.alive:
        engine.step()
    state = engine.scheduler.state
    assert int(state.swap_free) == 64 and int(state.blocks.free) == BLOCKS
