"""Attention does not depend on company: batch mates, chunks, shared blocks, heads shared out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_write import write_kv
from pallas_kernels.ragged_paged_attention import ragged_paged_attention, shapes
from pallas_kernels.ragged_paged_attention.shapes import Heads
from tests.pallas_kernels.attention import (
    BACK_ENDS,
    QUICK_ON_XLA,
    SMALL,
    TOLERANCE,
    attend,
    check,
    pairs,
)

write = jax.jit(write_kv)


@pytest.mark.parametrize("implementation", QUICK_ON_XLA)
def test_blocks_may_be_shared(implementation):
    """Two sequences with one prefix: the same blocks in both tables."""
    arguments = shapes.arguments(SMALL, [(40, 1), (33, 9), (40, 1)], block_size=8)
    arguments["block_tables"][1, :3] = arguments["block_tables"][0, :3]
    arguments["block_tables"][2] = arguments["block_tables"][0]
    arguments["q"] = arguments["q"].at[-1].set(arguments["q"][0])
    found = check(implementation, arguments)
    np.testing.assert_array_equal(found[0], found[-1])


@pytest.mark.parametrize("implementation", QUICK_ON_XLA)
def test_layer_may_be_traced(implementation):
    arguments = shapes.arguments(SMALL, [(30, 1), (12, 12)], block_size=4, num_layers=3)

    scale = arguments.pop("scale")

    @jax.jit
    def every_layer(arguments):
        def one(_, layer):
            return None, ragged_paged_attention(
                layer=layer, implementation=implementation, scale=scale, **arguments
            )

        return jax.lax.scan(one, None, jnp.arange(3))[1]

    found = every_layer(arguments)
    for layer in range(3):
        expected = attend(layer=layer, implementation="reference", scale=scale, **arguments)
        np.testing.assert_allclose(found[layer], expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    "implementation, ways",
    [("reference", 2), ("reference", 8), *(
        pytest.param(n, 8, marks=() if n == "xla" else pytest.mark.slow) for n in BACK_ENDS
    )],
)
def test_heads_shared_out_give_what_all_give_together(implementation, ways):
    """FAULTS J11: more ways than KV heads replicates them; every way is an ordinary call."""
    whole = Heads(16, 4, 8)
    part = whole.shard(ways)
    assert part == Heads(16 // ways, max(4 // ways, 1), 8)
    arguments = shapes.arguments(whole, [(30, 1), (12, 5)], block_size=4)
    expected = attend(layer=0, implementation="reference", **arguments)
    found = []
    for way in range(ways):
        first = way * part.num_heads // (16 // 4)
        own = dict(arguments)
        own["q"] = arguments["q"][:, way * part.num_heads :][:, : part.num_heads]
        for name in ("keys", "values"):
            own[name] = arguments[name][:, :, first : first + part.num_kv_heads]
        found.append(attend(layer=0, implementation=implementation, **own))
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=TOLERANCE)


@pytest.mark.parametrize("ways", [3, 32])
def test_heads_that_cannot_be_shared_out_are_refused(ways):
    with pytest.raises(ValueError, match=f"ways: {ways} .* 16 query heads and 4 KV heads"):
        Heads(16, 4, 8).shard(ways)


CHUNKINGS = ([90], [50, 40], [33, 33, 24], [1] * 90, [64, 1, 25])


def in_chunks(implementation, chunks, *, block_size, tokens, sequences, seat, mates, seed):
    """One 90-token sequence computed chunk by chunk beside other sequences; its 90 results."""
    rng = np.random.default_rng(7)
    q = rng.standard_normal((90, 4, 16), np.float32)
    k, v = rng.standard_normal((2, 90, 2, 16), np.float32)
    results, done = [], 0
    for chunk in chunks:
        mixture = list(mates)
        mixture.insert(seat, (done + chunk, chunk))
        arguments = shapes.arguments(
            SMALL,
            mixture,
            block_size=block_size,
            tokens=tokens,
            sequences=sequences,
            table_width=-(-96 // block_size),
            num_blocks=640 // block_size,
            seed=seed + done,
        )
        place = np.arange(90)
        blocks = arguments["block_tables"][seat, place // block_size]  # NO_BLOCK when still to come
        arguments["keys"], arguments["values"] = write(
            arguments["keys"], arguments["values"], k, v, 0, blocks, place % block_size
        )
        own = slice(*arguments["query_starts"][seat : seat + 2])
        arguments["q"] = arguments["q"].at[own].set(q[done : done + chunk])
        results.append(attend(layer=0, implementation=implementation, **arguments)[own])
        done += chunk
    return np.concatenate(results)


@pytest.mark.parametrize(
    "implementation, chunks", pairs(CHUNKINGS, CHUNKINGS, ([33, 33, 24], [64, 1, 25]))
)
def test_a_result_does_not_depend_on_batch_mates(implementation, chunks):
    """FAULTS J9: other mates, another seat, another rung, other blocks; equal in every bit."""
    chunks = chunks if len(chunks) < 90 else chunks[:12]
    alone = in_chunks(
        implementation, chunks, block_size=16, tokens=96, sequences=1, seat=0, mates=[], seed=0
    )
    mates = [(17, 1), (70, 1), (9, 9), (64, 3), (33, 1)]
    among = in_chunks(
        implementation, chunks, block_size=16, tokens=112, sequences=8, seat=3, mates=mates, seed=99
    )
    assert np.array_equal(alone, among)


@pytest.mark.parametrize("implementation", QUICK_ON_XLA)
def test_chunking_and_block_size_change_rounding_at_most(implementation):
    whole = None
    for chunks in CHUNKINGS[:3]:
        for block_size in (16, 4, 64):
            found = in_chunks(
                implementation,
                chunks,
                block_size=block_size,
                tokens=112,
                sequences=8,
                seat=1,
                mates=[(40, 1)],
                seed=3,
            )
            whole = found if whole is None else whole
            np.testing.assert_allclose(found, whole, atol=TOLERANCE, rtol=0)
