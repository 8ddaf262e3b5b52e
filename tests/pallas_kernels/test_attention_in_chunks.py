"""A result of ragged paged attention depends on its own sequence: not on chunks, mates or seats."""

import jax
import numpy as np
import pytest

from pallas_kernels.kv_write import write_kv
from pallas_kernels.ragged_paged_attention import shapes
from tests.pallas_kernels.attending import QUICK_ON_XLA, SMALL, TOLERANCE, attend, pairs

write = jax.jit(write_kv)
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
