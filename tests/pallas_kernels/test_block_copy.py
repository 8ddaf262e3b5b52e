"""Block copy: right blocks only, padding copies nothing, within a pool and between two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import backends, quantised, storage
from pallas_kernels.block_copy import copy_blocks
from pallas_kernels.kv_write import new_kv_cache

BACK_ENDS = backends.names("pallas_kernels.block_copy")
L, N, K, B, D, P = 3, 12, 2, 4, 8, 6

copy = jax.jit(copy_blocks, static_argnames="implementation")


def pool(num_blocks, seed, dtype="float32"):
    cache = new_kv_cache(L, num_blocks, K, B, D, dtype)
    random = np.random.default_rng(seed)
    return tuple(
        storage.to_storage(jnp.asarray(random.standard_normal(x.shape), jnp.float32), x.dtype)
        for x in cache
    )


@pytest.mark.parametrize("between", [False, True], ids=["copy-on-write", "swap"])
@pytest.mark.parametrize("implementation", BACK_ENDS)
@settings(max_examples=20)
@given(data=st.data())
def test_copies_named_blocks_and_nothing_else(implementation, between, data):
    blocks = data.draw(st.permutations(range(N)))
    sources, targets = np.array(blocks[:P]), np.array(blocks[P : 2 * P])
    padding = data.draw(st.lists(st.sampled_from([None, -1, N, 3 * N]), min_size=P, max_size=P))
    dead = np.array([p is not None for p in padding])
    which = data.draw(st.sampled_from([sources, targets]))
    which[dead] = [p for p in padding if p is not None]
    cache, other = pool(N, 0), pool(N, 1) if between else None
    expected = [np.array(x) for x in cache]
    for before, after in zip(other or cache, expected, strict=True):
        for source, target in zip(sources[~dead], targets[~dead], strict=True):
            after[:, target] = np.asarray(before)[:, source]
    found = copy(*cache, sources, targets, source=other, implementation=implementation)
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("implementation", BACK_ENDS)
def test_pools_of_different_sizes_and_many_blocks(implementation):
    """More pairs than a back end keeps under way; bfloat16 bits come through as they are."""
    cache, other = pool(20, 0, "bfloat16"), pool(31, 1, "bfloat16")
    sources, targets = np.arange(30, 10, -1), np.arange(20)
    found = copy(*cache, sources, targets, source=other, implementation=implementation)
    for one, before in zip(found, other, strict=True):
        assert one.dtype == before.dtype
        bits = (np.asarray(x).view(np.uint16) for x in (one, before[:, sources]))
        np.testing.assert_array_equal(*bits)


@pytest.mark.parametrize("implementation", BACK_ENDS)
def test_scales_go_with_their_numbers(implementation):
    cache, other = (
        tuple(quantised.store(x, "int8") for x in pool(n, s)) for n, s in ((N, 0), (7, 1))
    )
    found = copy(
        *cache, np.array([6, -1, 2]), np.array([3, 4, 0]), source=other,
        implementation=implementation,
    )
    for one, before, source in zip(found, cache, other, strict=True):
        for part, old, new in zip(one, before, source, strict=True):
            expected = np.array(old)
            expected[:, [3, 0]] = np.asarray(new)[:, [6, 2]]
            np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"target_blocks": jnp.zeros(3, jnp.int32)}, r"source_blocks, target_blocks: .* one \[P\]"),
        ({"values": jnp.zeros((L, N, K, B, D + 1))}, "keys, values: .* must be one"),
        ({"source": (jnp.zeros((L, 3, K, B, D + 1)),) * 2}, "source: .* may differ .* only"),
        ({"implementation": "cuda"}, r"implementation: 'cuda' is unknown; use None or one of"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    keys, values = pool(N, 0)
    arguments = {
        "keys": keys,
        "values": values,
        "source_blocks": jnp.zeros(P, jnp.int32),
        "target_blocks": jnp.ones(P, jnp.int32),
    }
    with pytest.raises(ValueError, match=message):
        copy_blocks(**{**arguments, **change})
