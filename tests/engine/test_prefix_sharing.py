"""The promise of prefix sharing: tokens with sharing are the tokens without.

FAULTS C4 is moot: a model whose layers have a sliding window is refused when it is loaded.
"""

import numpy as np
import pytest

from cbjax import policies
from cbjax.engine import Engine
from cbjax.metrics import Recorder
from cbjax.models import load_model
from cbjax.workload import Arrivals, Workload, WorkloadRequest
from tests.engine.serving import Ask, serve_all, small_ladder

SEATS, LENGTH, TOKENS = 8, 128, 256
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


@pytest.fixture(scope="module")
def requests(model):
    """Three system prompts, some asked twice or thrice over, lengths at and around whole blocks."""
    random = np.random.default_rng(3)

    def ids(count):
        return tuple(int(token) for token in random.integers(0, model.tokenizer.vocab_size, count))

    openings = [ids(32), ids(40), ids(7)]
    asked = []
    for index in range(24):
        opening = openings[index % 3]
        # FAULTS C1 and C3: a whole number of blocks, one more, one fewer, and exact repetitions.
        prompt = opening[: len(opening) - index % 2] + (ids(index % 5 * 4) if index % 4 else ())
        settings = dict(max_tokens=6 + index % 9, ignore_eos=True)
        if index % 2:
            settings |= dict(temperature=0.8, seed=index)
        asked.append(Ask(prompt, settings))
    return asked


def engine_for(model, policy, positions=2048, block_size=8):
    return Engine(
        model, policy=policy, block_size=block_size, num_blocks=positions // block_size,
        max_length=LENGTH, iteration_tokens=TOKENS, ladder=small_ladder(TOKENS, SEATS), debug=True,
    )


def vllm(**knobs):
    return policies.vllm(max_num_batched_tokens=64, max_num_seqs=SEATS, **knobs)


@pytest.fixture(scope="module")
def cold(model, requests):
    """The tokens of each request without sharing."""
    return serve_all(engine_for(model, vllm()), requests).tokens


@pytest.mark.parametrize(
    "policy, block_size", [("fcfs", 8), pytest.param("priority", 4, marks=SLOW)]
)
def test_tokens_are_those_without_sharing(model, requests, cold, policy, block_size):
    engine = engine_for(
        model, vllm(policy=policy, enable_prefix_caching=True), block_size=block_size
    )
    served = serve_all(engine, requests)
    assert served.tokens == cold
    assert served.cached > 200
    # Served once more, nearly every prompt is found, and the tokens are the same (FAULTS C3).
    again = serve_all(engine, requests)
    assert again.tokens == cold
    assert again.cached > served.cached


def test_scores_of_a_prompt_do_not_depend_on_what_is_cached(model, requests):
    """FAULTS C11, C12: overlapping prompts, in either order; every position has its scores."""
    engine = engine_for(model, vllm(enable_prefix_caching=True))
    first, second = requests[0].prompt, requests[3].prompt
    assert first[:24] == second[:24]
    cold = [engine.logits(prompt) for prompt in (first, second)]
    assert serve_all(engine, requests).cached > 200
    for order in ((0, 1), (1, 0)):
        for place in order:
            warm = engine.logits((first, second)[place])
            assert len(warm) == len((first, second)[place])
            np.testing.assert_array_equal(warm, cold[place])


@pytest.mark.parametrize(
    "moment",
    [pytest.param("compute", marks=SLOW), "prefill_done", pytest.param("finish", marks=SLOW)],
)
def test_tokens_do_not_depend_on_when_a_prefix_is_visible(model, requests, cold, moment):
    policy = vllm(
        enable_prefix_caching=True, prefix_visible_at=moment, scheduler_reserve_full_isl=False
    )
    served = serve_all(engine_for(model, policy, positions=112), requests)
    assert served.tokens == cold
    assert served.cached > 50 and served.preemptions > 0


def test_tokens_survive_preemption_and_eviction(model, requests, cold):
    """FAULTS C7: blocks are evicted and handed out again, and nobody reads what is not theirs."""
    policy = vllm(enable_prefix_caching=True, scheduler_reserve_full_isl=False)
    engine = engine_for(model, policy, positions=112)
    served = serve_all(engine, requests)
    assert served.preemptions > 5
    assert served.cached > 50
    assert served.tokens == cold


@pytest.mark.parametrize(
    "late, order, positions",
    [pytest.param(True, "fcfs", 2048, marks=SLOW), (False, "lpm", 160)],
)
def test_a_radix_tree_gives_the_same_tokens(model, requests, cold, late, order, positions):
    """Both loops of SGLang, with room for everything and with little."""
    policy = policies.sglang(
        max_running_requests=SEATS, chunked_prefill_size=64, schedule_policy=order,
        disable_overlap_schedule=not late, disable_radix_cache=False,
    )
    served = serve_all(engine_for(model, policy, positions), requests)
    assert served.tokens == cold
    assert served.cached > 200


def test_prompts_that_ended_give_the_same_tokens(model, requests, cold):
    policy = policies.tgi(max_batch_size=SEATS, max_batch_prefill_tokens=64, prefix_caching=True)
    served = serve_all(engine_for(model, policy, positions=256), requests)
    assert served.tokens == cold
    assert served.cached > 50


def test_cached_tokens_reach_the_results(model):
    """FAULTS C13: they are counted once, for the request that found them."""
    engine = engine_for(model, vllm(enable_prefix_caching=True))
    prompt = tuple(range(3, 20))
    requests = tuple(
        WorkloadRequest(
            id, "default", 0, 0.0, prompt, len(prompt), max_tokens=2, ignore_eos=True, seed=id
        )
        for id in range(3)
    )
    recorder = Recorder()
    engine.serve(Workload(requests, Arrivals(), 0), recorder)
    assert recorder.tables().requests["cached_prompt_tokens"].to_list() == [0, 16, 16]


@pytest.mark.parametrize(
    ("positions", "ahead"),
    [pytest.param(2048, False, marks=SLOW), (112, False), pytest.param(112, True, marks=SLOW)],
    ids=["ample", "scarce", "ahead"],
)
def test_tokens_survive_equal_blocks_made_one(model, requests, cold, positions, ahead):
    policy = policies.transformers(
        max_batch_tokens=64, max_requests_per_batch=SEATS, safety_margin=0.0,
        allow_block_sharing=True, use_async_batching=ahead,
    )
    served = serve_all(engine_for(model, policy, positions=positions), requests)
    assert served.tokens == cold
    assert served.cached > 50
    assert (served.preemptions > 5) == (positions < 2048)
