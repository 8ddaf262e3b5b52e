"""One suite for every back end of ragged paged attention: a new file in the folder is tested too.

The definition is `reference.py`; jax's own reference stands beside it where it can be imported.
Back ends written for a chip that is not here are interpreted. That takes seconds of compilation per
shape, so for them some cases are slow tests.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pallas_kernels.ragged_paged_attention import shapes
from pallas_kernels.ragged_paged_attention.shapes import Heads
from tests.pallas_kernels.attention import (
    BACK_ENDS,
    QUICK_ON_XLA,
    SMALL,
    TOLERANCE,
    attend,
    check,
    pairs,
    quick,
)


@st.composite
def mixtures(draw, block_size, longest=44, tokens=48, sequences=6):
    """Ragged batches whose lengths lie on and beside the block boundaries."""
    edges = [m * block_size + d for m in range(1, longest // block_size) for d in (-1, 0, 1)]
    length = st.one_of(st.integers(1, longest), st.sampled_from(edges))
    mixture = []
    for _ in range(draw(st.integers(0, sequences))):
        context = draw(length)
        queries = draw(st.one_of(st.just(1), st.just(context), st.integers(1, context)))
        used = sum(q for _, q in mixture)
        mixture.append((context, queries) if used + queries <= tokens else (0, 0))
    return mixture


@pytest.mark.parametrize("implementation", BACK_ENDS)
@settings(max_examples=60)
@example(mixture=[], seed=0, window=None)
@example(mixture=[(0, 0), (1, 1), (0, 0), (12, 4)], seed=1, window=None)
@example(mixture=[(44, 44), (4, 4)], seed=2, window=None)
@example(mixture=[(44, 44), (30, 1), (9, 2)], seed=3, window=6)
@given(
    mixture=mixtures(block_size=4), seed=st.integers(0, 2**16),
    window=st.sampled_from([None, 6]),  # each is a compilation; 6 ends within blocks
)
def test_equals_the_reference_on_ragged_batches(implementation, mixture, seed, window):
    padded = {"tokens": 48, "sequences": 6, "table_width": 11, "num_blocks": 70}
    arguments = shapes.arguments(SMALL, mixture, block_size=4, seed=seed, **padded)
    check(implementation, arguments, window=window)


@pytest.mark.parametrize("block_size", quick(shapes.BLOCK_SIZES, (1, 24, 256)))
@pytest.mark.parametrize("implementation", QUICK_ON_XLA)
def test_every_block_size_is_right(implementation, block_size):
    """FAULTS J5 (blocks above 128), J3 (19 blocks of 16 or 13 of 24: no multiple)."""
    mixture = [(1, 1), (257, 1), (0, 0), (100, 37), (65, 65), (129, 2), (300, 1)]
    check(implementation, shapes.arguments(SMALL, mixture, block_size=block_size, tokens=120))


@pytest.mark.parametrize(
    "implementation, name",
    pairs(
        shapes.HEADS, ("smollm2-135m", "gemma-7b"),
        ("smollm2-135m", "phi2-2.7b", "phi3-mini", "gemma-7b"),
    ),
)
def test_real_head_shapes_are_right(implementation, name):
    mixture = [(70, 1), (20, 20), (33, 9)]
    arguments = shapes.arguments(shapes.HEADS[name], mixture, block_size=16)
    check(implementation, arguments, tolerance=2 * TOLERANCE)  # sums over up to 256 numbers


@pytest.mark.parametrize(
    "query_dtype, tolerance",
    [("float32", TOLERANCE), pytest.param("bfloat16", 2e-2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("implementation", QUICK_ON_XLA)
def test_bfloat16_cache_and_queries(implementation, query_dtype, tolerance):
    arguments = shapes.arguments(
        SMALL,
        [(90, 1), (40, 40), (70, 6)],
        block_size=16,
        dtype="bfloat16",
        query_dtype=query_dtype,
    )
    check(implementation, arguments, tolerance=tolerance)


@pytest.mark.parametrize("implementation", [*BACK_ENDS, "reference"])
def test_causal_mask_is_aligned_to_the_end(implementation):
    """FAULTS J1: 4 queries on a context of 12 see 9, 10, 11 and 12 positions."""
    arguments = shapes.arguments(Heads(1, 1, 8), [(12, 4)], block_size=4)
    found = attend(layer=0, implementation=implementation, **arguments)
    table = arguments["block_tables"][0]
    keys, values = (
        np.asarray(arguments[n][0, table, 0]).reshape(12, 8) for n in ("keys", "values")
    )
    for i in range(4):
        scores = keys[: 9 + i] @ np.asarray(arguments["q"][i, 0]) * arguments["scale"]
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ values[: 9 + i]
        np.testing.assert_allclose(found[i, 0], expected, atol=TOLERANCE)


@pytest.mark.parametrize("implementation", [*BACK_ENDS, "reference"])
def test_nothing_beyond_the_live_positions_is_relied_upon(implementation):
    """FAULTS J4: empty rows give 0, and NaN in dead places or padding queries reaches nobody."""
    arguments = shapes.arguments(
        SMALL,
        [(5, 1), (0, 0), (21, 21), (40, 3)],
        block_size=8,
        tokens=32,
        sequences=8,
        num_blocks=30,
    )
    clean = attend(layer=0, implementation=implementation, **arguments)
    dead = np.ones(arguments["keys"].shape[1:4:2], bool)  # [N, B]
    for table, length in zip(arguments["block_tables"], arguments["context_lengths"], strict=True):
        for position in range(length):
            dead[table[position // 8], position % 8] = False
    assert dead.any(axis=1).sum() > dead.all(axis=1).sum() > 0, "half-live blocks are part of this"
    for name in ("keys", "values"):
        arguments[name] = jnp.where(dead[None, :, None, :, None], jnp.nan, arguments[name])
    padding = arguments["sequences"] == 8
    arguments["q"] = jnp.where(padding[:, None, None], jnp.nan, arguments["q"])
    poisoned = attend(layer=0, implementation=implementation, **arguments)
    assert np.array_equal(clean, poisoned)
    assert not np.any(poisoned[padding])


@pytest.mark.parametrize(
    "window, soft_cap",
    [(13, None), pytest.param(1, None, marks=pytest.mark.slow), (100, 1.5), (None, 1.5)],
)
@pytest.mark.parametrize("implementation", QUICK_ON_XLA)
def test_windows_and_soft_caps(implementation, window, soft_cap):
    """Blocks wholly before the windows may be gone: whatever their table entries name is unseen."""
    mixture = [(5, 1), (0, 0), (70, 1), (21, 21), (64, 30), (13, 1), (14, 2)]
    arguments = shapes.arguments(SMALL, mixture, block_size=4, tokens=60, sequences=8)
    options = {"window": window, "soft_cap": soft_cap}
    expected = attend(layer=0, implementation="reference", **options, **arguments)
    assert not np.allclose(
        expected, attend(layer=0, implementation="reference", **arguments), atol=1e-3
    )
    gone = 0
    for s, (context, queries) in enumerate(mixture):
        seen = max(context - queries - (window or context) + 1, 0) // 4
        for m in range(seen):
            block = arguments["block_tables"][s, m]
            arguments["block_tables"][s, m] = -1
            for name in ("keys", "values"):
                arguments[name] = arguments[name].at[:, block].set(jnp.nan)
            gone += 1
    assert gone > 0 or window is None or window == 100
    found = attend(layer=0, implementation=implementation, **options, **arguments)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("window", [None, pytest.param(13, marks=pytest.mark.slow)])
@pytest.mark.parametrize("implementation", BACK_ENDS)
def test_without_causality_a_token_sees_the_whole_context(implementation, window):
    """Windows still end the past; chunks of one context differ by their queries alone."""
    mixture = [(5, 1), (0, 0), (70, 1), (21, 21), (64, 30), (14, 2)]
    arguments = shapes.arguments(SMALL, mixture, block_size=4, tokens=60, sequences=8)
    options = {"causal": False, "window": window}
    found = check(implementation, arguments, **options)
    causal = attend(layer=0, implementation="reference", window=window, **arguments)
    last = arguments["query_starts"][1:] - 1
    np.testing.assert_allclose(found[last], causal[last], atol=TOLERANCE)
    assert not np.allclose(found[2:23], causal[2:23], atol=1e-3)


def test_without_causality_is_softmax_over_the_context():
    arguments = shapes.arguments(Heads(1, 1, 8), [(12, 4)], block_size=4)
    found = attend(layer=0, implementation="reference", causal=False, **arguments)
    table = arguments["block_tables"][0]
    keys, values = (
        np.asarray(arguments[n][0, table, 0]).reshape(12, 8) for n in ("keys", "values")
    )
    scores = np.asarray(arguments["q"][:, 0]) @ keys.T * arguments["scale"]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ values
    np.testing.assert_allclose(found[:, 0], expected, atol=TOLERANCE)


@pytest.mark.parametrize("implementation", QUICK_ON_XLA)
def test_a_cache_may_be_wider_than_the_heads(implementation):
    """As it is on a TPU: whole tiles of 128 lanes, and what fills them is never looked at."""
    arguments = shapes.arguments(SMALL, [(40, 1), (33, 9)], block_size=8)
    expected = attend(layer=0, implementation="reference", **arguments)
    for name in ("keys", "values"):
        width = [(0, 0)] * 4 + [(0, 128 - 16)]
        arguments[name] = jnp.pad(arguments[name], width, constant_values=7.0)
    found = attend(layer=0, implementation=implementation, **arguments)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "window, soft_cap", [(9, None), pytest.param(13, 2.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("implementation", [*QUICK_ON_XLA, "reference"])
def test_agrees_with_the_reference_of_jax(implementation, window, soft_cap):
    theirs = pytest.importorskip("jax.experimental.pallas.ops.tpu.ragged_paged_attention")
    mixture = [(37, 1), (20, 20), (40, 5)]
    arguments = shapes.arguments(SMALL, mixture, block_size=8)
    pages = np.zeros((*arguments["keys"].shape[1:4:2], 4, 16), np.float32)
    pages[:, :, 0::2] = np.swapaxes(arguments["keys"][0], 1, 2)
    pages[:, :, 1::2] = np.swapaxes(arguments["values"][0], 1, 2)
    expected = theirs.ref_ragged_paged_attention(
        arguments["q"],
        jnp.asarray(pages),
        jnp.asarray(arguments["context_lengths"]),
        jnp.asarray(arguments["block_tables"]),
        jnp.asarray(arguments["query_starts"]),
        jnp.asarray([len(mixture)], jnp.int32),
        sm_scale=arguments["scale"],
        sliding_window=window,
        soft_cap=soft_cap,
    )
    found = attend(
        layer=0, implementation=implementation, window=window, soft_cap=soft_cap, **arguments
    )
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_xla_memory_follows_neither_seats_nor_table_width():
    """A dense gather of this batch takes 100 MB; nor is a layer of the cache copied out."""
    lowered = partial(attend.lower, layer=0, implementation="xla")
    arguments = shapes.arguments(
        shapes.HEADS["smollm2-135m"],
        [(40, 1), (30, 30)],
        block_size=16,
        tokens=64,
        sequences=32,
        table_width=128,
        num_blocks=2048,
        num_layers=2,
    )
    compiled = lowered(**arguments).compile()
    dense = 2 * arguments["block_tables"].size * arguments["keys"][0, 0].nbytes
    assert compiled.memory_analysis().temp_size_in_bytes < dense / 10
    assert "f32[1,2048,3,16,64]" not in compiled.as_text()
    assert "f32[2048,3,16,64]" not in compiled.as_text()
