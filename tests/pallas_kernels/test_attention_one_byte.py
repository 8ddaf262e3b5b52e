"""Attention over caches of one byte per number, in every back end."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import quantised, storage
from pallas_kernels.ragged_paged_attention import shapes
from pallas_kernels.ragged_paged_attention.shapes import Heads
from tests.pallas_kernels.attention import BACK_ENDS, SMALL, TOLERANCE, attend, check, quick


@pytest.mark.parametrize("dtype", quick(storage.SCALED_DTYPES, ("int8",)))
@pytest.mark.parametrize("implementation", BACK_ENDS)
def test_caches_of_one_byte_are_read_without_loss(implementation, dtype):
    """What is lost is lost when they are written; NaN scales of dead places reach nobody.

    Scales may fill whole tiles, as on a TPU; what lies beside those of the heads is never read.
    """
    mixture = [(5, 1), (0, 0), (70, 1), (21, 21), (64, 30)]
    arguments = shapes.arguments(
        SMALL, mixture, block_size=8, tokens=60, sequences=8, dtype=dtype, num_blocks=40
    )
    narrow = attend(layer=0, implementation="reference", **arguments)
    for name in ("keys", "values"):
        numbers, scales = arguments[name]
        width = [(0, 0), (0, 0), (0, 2), (0, 120)]
        scales = jnp.pad(scales, width, constant_values=jnp.nan)
        arguments[name] = quantised.Quantised(numbers, scales)
    clean = check(implementation, arguments)
    np.testing.assert_allclose(clean, narrow, atol=TOLERANCE, rtol=0)
    dead = np.ones(arguments["keys"].shape[1:4:2], bool)  # [N, B]
    for table, length in zip(arguments["block_tables"], arguments["context_lengths"], strict=True):
        for position in range(length):
            dead[table[position // 8], position % 8] = False
    for name in ("keys", "values"):
        numbers, scales = arguments[name]
        poison = jnp.asarray(127, numbers.dtype)  # of e4m3 the bits of NaN
        arguments[name] = quantised.Quantised(
            jnp.where(dead[None, :, None, :, None], poison, numbers),
            scales.at[..., :8].set(jnp.where(dead[None, :, None], jnp.nan, scales[..., :8])),
        )
    assert np.array_equal(clean, attend(layer=0, implementation=implementation, **arguments))


@pytest.mark.parametrize("dtype", storage.SCALED_DTYPES)
@pytest.mark.parametrize(
    "implementation, options",
    [
        pytest.param(b, o, marks=pytest.mark.slow)
        for b in BACK_ENDS
        for o in ({"block_size": 1}, {"block_size": 24}, {"block_size": 256},
                  {"block_size": 16, "query_dtype": "bfloat16"})
    ],
)
def test_caches_of_one_byte_at_other_sizes(implementation, options, dtype):
    mixture = [(1, 1), (257, 1), (100, 37), (129, 2), (300, 1)]
    arguments = shapes.arguments(SMALL, mixture, tokens=50, dtype=dtype, **options)
    for window, causal in ((None, True), (19, False)):
        tolerance = 2e-2 if "query_dtype" in options else TOLERANCE
        check(implementation, arguments, tolerance=tolerance, window=window, causal=causal)


@pytest.mark.parametrize("dtype, bound", [("int8", 0.03), ("float8_e4m3fn", 0.15)])
def test_caches_of_one_byte_cost_little_accuracy(dtype, bound):
    """Standard normal keys and values; results are of size 1 at most contexts."""
    arguments = shapes.arguments(Heads(4, 2, 64), [(5, 1), (90, 1), (40, 40)], block_size=8)
    exact = attend(layer=0, implementation="reference", **arguments)
    for name in ("keys", "values"):
        arguments[name] = quantised.store(arguments[name], storage.storage_dtype(dtype))
    error = np.abs(attend(layer=0, implementation="reference", **arguments) - exact).max()
    assert bound / 30 < error < bound


def test_scales_fill_tiles_that_no_compiler_transposes():
    shapes_of = [storage.scales_shape(heads, 16, wide=True) for heads in (1, 2, 3, 5, 8, 9)]
    assert shapes_of == [(1, 128), (2, 128), (4, 128), (8, 128), (8, 128), (16, 128)]
    assert storage.scales_shape(3, 16, wide=False) == (3, 16)
