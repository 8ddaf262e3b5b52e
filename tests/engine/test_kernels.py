"""The engine on every attention back end: iteration batches are consumed by the Pallas kernels.

Those written for a chip that is not here are interpreted, so requests are few and short.
"""

import pytest

from cbjax import policies
from cbjax.engine import Engine
from cbjax.engine.model_step import bytes_per_block
from cbjax.models import load_model
from pallas_kernels import backends
from tests.engine.serving import mixed_requests, serve_all, small_ladder

PACKAGE = "pallas_kernels.ragged_paged_attention"
OTHERS = [name for name in backends.names(PACKAGE) if name != "xla"]
SEATS, TOKENS, LENGTH = 4, 24, 48
SCARCE = 56  # token positions of a pool that runs short


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


@pytest.fixture(scope="module")
def requests(model):
    return mixed_requests(12, model.tokenizer.vocab_size, longest_prompt=32, most_output=14, seed=3)


def engine_for(model, attention, *, budget=12, block_size=8, positions=SCARCE, **options):
    policy = policies.vllm(
        max_num_batched_tokens=budget, max_num_seqs=SEATS, scheduler_reserve_full_isl=False
    )
    return Engine(
        model, policy=policy, block_size=block_size, num_blocks=positions // block_size,
        max_length=LENGTH, iteration_tokens=TOKENS, ladder=small_ladder(TOKENS, SEATS),
        attention=attention, **options,
    )


@pytest.fixture(scope="module")
def alone(model, requests):
    """The tokens of each request decoded alone, on XLA."""
    return serve_all(engine_for(model, "xla"), requests, at_once=1).tokens


@pytest.mark.parametrize(
    "attention",
    [n if n != "reference" else pytest.param(n, marks=pytest.mark.slow) for n in OTHERS],
)
def test_every_back_end_gives_the_same_tokens(model, requests, alone, attention):
    """Mixed batches, budgets, preemption; FAULTS J8: nothing compiles after the start, J9: no
    request's tokens depend on its batch mates."""
    engine = engine_for(model, attention)
    engine.compile()
    served = serve_all(engine, requests)
    assert served.tokens == alone
    assert served.preemptions >= 3
    assert engine.compilations_since_start == 0


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("attention", OTHERS)
def test_block_size_changes_no_token(model, requests, alone, attention, block_size):
    assert serve_all(engine_for(model, attention, block_size=block_size), requests).tokens == alone


@pytest.mark.slow
@pytest.mark.parametrize("attention", OTHERS)
def test_bfloat16_cache_gives_the_tokens_of_xla(model, requests, attention):
    """The kernels lose nothing of a float32 query where the cache is bfloat16."""
    expected = serve_all(engine_for(model, "xla", dtype="bfloat16"), requests).tokens
    assert serve_all(engine_for(model, attention, dtype="bfloat16"), requests).tokens == expected


@pytest.mark.parametrize("dtype", ["int8", pytest.param("float8_e4m3fn", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "attention",
    ["xla", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)],
)
def test_caches_of_one_byte_give_the_same_tokens_in_any_company(
    model, requests, attention, dtype
):
    """A row is rounded once, alone: neither chunks nor batch mates nor the back end change it."""
    expected = serve_all(engine_for(model, "xla", dtype=dtype), requests, at_once=1).tokens
    served = serve_all(engine_for(model, attention, dtype=dtype), requests)
    assert served.tokens == expected and served.preemptions >= 3


def test_bytes_of_a_block_count_scales(model):
    config = model.config
    rows = 2 * config.num_layers * config.num_kv_heads * 8
    for dtype, size in (("float32", 4 * config.head_dim), ("bfloat16", 2 * config.head_dim),
                        ("int8", config.head_dim + 4), ("float8_e4m3fn", config.head_dim + 4)):
        assert bytes_per_block(config, 8, dtype) == rows * size


def test_an_unknown_back_end_is_named(model, requests):
    with pytest.raises(ValueError, match="implementation: 'rocm' is unknown; use None or one of"):
        engine_for(model, "rocm").compile()
