"""Running the model over a paged cache by hand: batches laid out in plain numpy.

Written from the definition of the iteration batch, not from the code that packs it.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from cbjax.core.batch import IterationBatch
from cbjax.models import ModelConfig, Weights, forward
from pallas_kernels.kv_write.api import new_kv_cache

step = jax.jit(forward, static_argnums=1, donate_argnums=(2, 3), static_argnames="attention")


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Greatest difference of logits, as a share of the greatest expected one."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@functools.lru_cache
def block_tables(sequences: int, blocks_each: int, seed: int = 0) -> np.ndarray:
    """`[S, M]` physical blocks, each owned once, in no order."""
    shuffled = np.random.default_rng(seed).permutation(sequences * blocks_each)
    return shuffled.reshape(sequences, blocks_each).astype(np.int32)


def make_batch(
    chunks: Sequence[tuple[int, int, Sequence[int]]],
    tables: np.ndarray,
    block_size: int,
    tokens: int,
    sequences: int,
    num_blocks: int | None = None,
) -> IterationBatch:
    """Lay out chunks `(row of tables, first position, token ids)` padded to a rung.

    The cache has `num_blocks` blocks, by default as many as `tables` names.
    """
    num_blocks = tables.size if num_blocks is None else num_blocks
    flat = {name: np.zeros(tokens, np.int32) for name in ("ids", "positions", "offsets")}
    owners = np.full(tokens, sequences, np.int32)
    blocks = np.full(tokens, num_blocks, np.int32)
    starts = np.zeros(sequences + 1, np.int32)
    lengths = np.zeros(sequences, np.int32)
    rows = np.full(sequences, -1, np.int32)
    used = np.full((sequences, tables.shape[1]), -1, np.int32)
    samples = np.zeros(sequences, np.int32)
    at = 0
    for s, (row, first, ids) in enumerate(chunks):
        end = at + len(ids)
        positions = np.arange(first, first + len(ids))
        flat["ids"][at:end], flat["positions"][at:end] = ids, positions
        flat["offsets"][at:end] = positions % block_size
        blocks[at:end] = tables[row, positions // block_size]
        owners[at:end] = s
        live = -(-(first + len(ids)) // block_size)
        used[s, :live] = tables[row, :live]
        lengths[s], rows[s], samples[s] = first + len(ids), row, end - 1
        starts[s + 1 :] = at = end
    return IterationBatch(
        token_ids=flat["ids"],
        positions=flat["positions"],
        sequences=owners,
        write_blocks=blocks,
        write_offsets=flat["offsets"],
        query_starts=starts,
        context_lengths=lengths,
        block_tables=used,
        sample_tokens=samples,
        sampled=np.arange(sequences) < len(chunks),
        rows=rows,
        num_tokens=np.int32(at),
        num_sequences=np.int32(len(chunks)),
    )


def paged_logits(
    weights: Weights,
    config: ModelConfig,
    token_ids: Sequence[int],
    chunks: Sequence[int],
    block_size: int,
    dtype: str = "float32",
    rung: tuple[int, int] = (128, 4),
) -> dict[int, np.ndarray]:
    """Logits after each chunk, by position, of one sequence run chunk by chunk.

    A second sequence, made of the same tokens in reverse, rides along in every iteration.
    """
    mate = list(reversed(token_ids))
    tables = block_tables(2, -(-len(token_ids) // block_size))
    cache = new_kv_cache(
        config.num_layers, tables.size, config.num_kv_heads, block_size, config.head_dim, dtype
    )
    found, first = {}, 0
    for size in chunks:
        last = first + size
        parts = [(1, first, mate[first:last]), (0, first, list(token_ids[first:last]))]
        batch = make_batch(parts, tables, block_size, *rung)
        logits, *cache = step(weights, config, *cache, batch)
        found[last - 1] = np.asarray(logits[1])
        first = last
    return found
