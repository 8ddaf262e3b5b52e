"""KV write: right places only, padding dropped, in place whatever the size of the cache."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import backends, storage
from pallas_kernels.kv_write import new_kv_cache, write_kv

BACK_ENDS = backends.names("pallas_kernels.kv_write")
L, N, K, B, D, T = 2, 6, 2, 4, 8, 10

put = jax.jit(write_kv, static_argnames="implementation", donate_argnums=(0, 1))


@pytest.mark.parametrize("implementation", BACK_ENDS)
@settings(max_examples=40)
@given(data=st.data())
def test_writes_named_places_and_nothing_else(implementation, data):
    """Padding (block N, or NO_BLOCK) writes nothing, in particular not into the last block."""
    places = data.draw(st.permutations([(b, o) for b in range(N) for o in range(B)]))[:T]
    padding = data.draw(st.lists(st.sampled_from([None, N, -1]), min_size=T, max_size=T))
    blocks = np.array([b if p is None else p for (b, _), p in zip(places, padding, strict=True)])
    offsets = np.array([o if p is None else 0 for (_, o), p in zip(places, padding, strict=True)])
    layer = data.draw(st.integers(0, L - 1))
    new = np.random.default_rng(0).standard_normal((2, T, K, D), np.float32)
    expected = np.zeros((2, L, N, K, B, D), np.float32)
    for t in range(T):
        if padding[t] is None:
            expected[:, layer, blocks[t], :, offsets[t]] = new[:, t]
    cache = new_kv_cache(L, N, K, B, D, "float32")
    found = put(*cache, *new, layer, blocks, offsets, implementation=implementation)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("implementation", BACK_ENDS)
def test_bfloat16_numbers_come_back_as_bfloat16_numbers(implementation):
    new = np.random.default_rng(0).standard_normal((2, N, K, D), np.float32)
    blocks, offsets = np.arange(N), np.arange(N) % B
    cache = new_kv_cache(L, N, K, B, D, "bfloat16")
    found = put(*cache, *new, 1, blocks, offsets, implementation=implementation)
    rounded = np.asarray(jnp.asarray(new).astype(jnp.bfloat16).astype(jnp.float32))
    for stored, expected in zip(found, rounded, strict=True):
        read = storage.from_storage(stored)
        np.testing.assert_array_equal(read[1, blocks, :, offsets], expected)
        assert not np.any(read[0])


@pytest.mark.parametrize("block_size", [1, 8, 12, 24, 32])
@pytest.mark.parametrize("implementation", BACK_ENDS)
def test_block_sizes_and_wide_caches(implementation, block_size):
    """Groups of 16 and 8 rows and whole blocks; FAULTS J4: padding does not reach the cache."""
    head_dim, tokens = 16, 21
    cache = tuple(jnp.zeros((L, 24, K, block_size, 128)) for _ in range(2))
    random = np.random.default_rng(block_size)
    places = random.permutation(24 * block_size)[:tokens]
    blocks, offsets = places // block_size, places % block_size
    blocks[[0, 7, 20]] = [24, -1, 24]
    new = random.standard_normal((2, tokens, K, head_dim), np.float32)
    new[:, [0, 7, 20]] = np.nan
    found = put(*cache, *new, 1, blocks, offsets, implementation=implementation)
    live = (blocks >= 0) & (blocks < 24)
    for one, rows in zip(found, new, strict=True):
        expected = np.zeros((L, 24, K, block_size, 128), np.float32)
        expected[1, blocks[live], :, offsets[live], :head_dim] = rows[live]
        np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("dtype, loss", [("int8", 1 / 254), ("float8_e4m3fn", 1 / 16)])
@pytest.mark.parametrize("implementation", BACK_ENDS)
def test_rows_of_one_byte_have_scales_of_their_own(implementation, dtype, loss):
    """Within half a step of each number, rows of any size; padding changes neither part.

    The scales fill whole tiles, as on a TPU.
    """
    random = np.random.default_rng(0)
    new = random.standard_normal((2, N, K, D), np.float32)
    new *= 10.0 ** random.integers(-6, 6, (2, N, K, 1))
    new[:, 1] = 0.0
    blocks, offsets = np.arange(N), np.arange(N) % B
    blocks[[3, 5]] = [N, -1]
    new[:, 3] = np.nan
    tiles = (L, N, *storage.scales_shape(K + 1, B, wide=True))
    cache = [
        half._replace(scales=jnp.zeros(tiles)) for half in new_kv_cache(L, N, K, B, D, dtype)
    ]
    found = put(*cache, *new, 1, blocks, offsets, implementation=implementation)
    live = (blocks >= 0) & (blocks < N)
    for stored, rows in zip(found, new, strict=True):
        every = np.asarray(stored.scales)
        scales = every[:, :, :K, :B]
        assert np.count_nonzero(every) == np.count_nonzero(scales)
        read = np.asarray(storage.from_storage(stored.numbers)) * scales[..., None]
        greatest = np.abs(rows[live]).max(axis=-1, keepdims=True)
        step = greatest * loss if dtype == "int8" else np.abs(rows[live]) * loss
        error = np.abs(read[1, blocks[live], :, offsets[live]] - rows[live])
        assert (error <= 1.01 * step + greatest * 2.0**-17).all()
        assert np.count_nonzero(scales) == K * (live.sum() - 1)
        np.testing.assert_array_equal(scales, np.asarray(scales.astype(jnp.bfloat16), np.float32))
        assert not read[0].any() and not read[1, [3, 5]].any()


@pytest.mark.parametrize("dtype", storage.CACHE_DTYPES)
def test_scan_over_layers_copies_no_cache(dtype):
    """Donated, carried, and no copy of it anywhere in the compiled program.

    An interpreter copies as it likes; that the other back ends do not, once compiled for their
    chip, is checked by `pallas_kernels.verify`.
    """

    def step(keys, values, k, v, blocks, offsets):
        def one_layer(cache, layer):
            return write_kv(
                *cache, k, v, layer, blocks, offsets, implementation="xla"
            ), None

        return jax.lax.scan(one_layer, (keys, values), jnp.arange(5))[0]

    keys, values = new_kv_cache(5, 400, 3, 16, 64, dtype)
    new = jnp.zeros((T, 3, 64))
    places = jnp.zeros(T, jnp.int32)
    compiled = (
        jax.jit(step, donate_argnums=(0, 1)).lower(keys, values, new, new, places, places).compile()
    )
    size = sum(part.nbytes for part in jax.tree.leaves(keys))
    assert compiled.memory_analysis().alias_size_in_bytes == 2 * size
    assert compiled.memory_analysis().temp_size_in_bytes < size / 100
    whole = r"\w+\[5,400,3,16,64\]\S* (copy|convert|select|add|transpose|broadcast)\("
    assert not re.findall(whole, compiled.as_text())


def test_cache_arrays_do_not_share_a_buffer():
    keys, values = new_kv_cache(1, 2, 1, 2, 4, "float32")
    assert keys.unsafe_buffer_pointer() != values.unsafe_buffer_pointer()
    assert keys.shape == (1, 2, 1, 2, 4)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"k": jnp.zeros((T, K, D + 1))}, "k: head size 9 must equal the cache's head size 8"),
        ({"k": jnp.zeros((T, K + 1, D))}, r"k: shape .* expected \[T, K, D\] = \[10, 2, 8\]"),
        ({"v": jnp.zeros((T + 1, K, D))}, "v: shape"),
        ({"write_offsets": jnp.zeros(3, jnp.int32)}, "write_offsets: shape"),
        ({"values": jnp.zeros((L, N, K, B, D + 1))}, "keys, values: .* must be one"),
        ({"keys": jnp.zeros((L, N, K, B, D), jnp.int8),
          "values": jnp.zeros((L, N, K, B, D), jnp.int8)}, "keys: numbers of int8 need scales"),
        ({"implementation": "cuda"}, r"implementation: 'cuda' is unknown; use None or one of"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    keys, values = new_kv_cache(L, N, K, B, D, "float32")
    arguments = {
        "keys": keys,
        "values": values,
        "k": jnp.zeros((T, K, D)),
        "v": jnp.zeros((T, K, D)),
        "layer": 0,
        "write_blocks": jnp.zeros(T, jnp.int32),
        "write_offsets": jnp.zeros(T, jnp.int32),
    }
    with pytest.raises(ValueError, match=message):
        write_kv(**{**arguments, **change})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dtype": "float16"}, "dtype: float16 is not supported"),
        ({"dtype": "fp8"}, "dtype: 'fp8' is not supported .* 'float8_e4m3fn'"),
        ({"num_blocks": 0}, "num_blocks: 0"),
    ],
)
def test_impossible_caches_are_refused(change, message):
    sizes = {"num_layers": 1, "num_blocks": 2, "num_kv_heads": 1, "block_size": 2, "head_dim": 4}
    with pytest.raises(ValueError, match=message):
        new_kv_cache(**{**sizes, "dtype": "float32", **change})
