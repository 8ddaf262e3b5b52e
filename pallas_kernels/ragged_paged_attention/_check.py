"""Errors that name the argument, what it is and what is supported."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pallas_kernels import quantised
from pallas_kernels.quantised import Cache

QUERY_DTYPES = ("float32", "bfloat16")


def check_arrays(q: Array, keys: Cache, values: Cache) -> None:
    if q.ndim != 3 or q.dtype.name not in QUERY_DTYPES:
        raise ValueError(
            f"q: {q.dtype}{list(q.shape)} is not supported; pass [T, H, D] of {QUERY_DTYPES}"
        )
    quantised.require_cache(keys, values)
    if q.shape[1] % keys.shape[2]:
        raise ValueError(
            f"q: {q.shape[1]} query heads are not a multiple of the cache's {keys.shape[2]} "
            "KV heads; every KV head serves the same number of query heads"
        )


def check_numbers(scale: float, causal: bool, window: int | None, soft_cap: float | None) -> None:
    """Settings that become part of the compiled program."""
    if not isinstance(scale, int | float):
        raise ValueError(
            f"scale: {scale} is not supported; give a Python number (under jax.jit, mark it static)"
        )
    if not isinstance(causal, bool):
        raise ValueError(f"causal: {causal!r} is not supported; give True or False, static in jit")
    for name, number in (("window", window), ("soft_cap", soft_cap)):
        if number is not None and not number > 0:
            raise ValueError(f"{name}: {number} is not supported; give a positive number or None")


def check_batch(
    num_tokens: int,
    block_tables: Array,
    context_lengths: Array,
    query_starts: Array,
    sequences: Array,
    positions: Array,
) -> None:
    if block_tables.ndim != 2:
        raise ValueError(f"block_tables: shape {list(block_tables.shape)} must be [S, M]")
    num_sequences = block_tables.shape[0]
    expected = (
        ("context_lengths", context_lengths, num_sequences, "S"),
        ("query_starts", query_starts, num_sequences + 1, "S+1"),
        ("sequences", sequences, num_tokens, "T"),
        ("positions", positions, num_tokens, "T"),
    )
    for name, array, length, letters in expected:
        if array.shape != (length,):
            raise ValueError(
                f"{name}: shape {list(array.shape)} does not fit; expected [{letters}] = "
                f"[{length}] for this q and block_tables"
            )
    for name, array in (("block_tables", block_tables), *((n, a) for n, a, _, _ in expected)):
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{name}: dtype {array.dtype} is not supported; use int32")


def check_values(
    num_blocks: int, block_size: int, block_tables: Array, context_lengths: Array,
    query_starts: Array,
) -> None:
    """Look at the numbers of a batch: no live table entry outside of the pool, lengths that fit.

    Raises:
        ValueError: a number is impossible, or the arrays are traced and have none yet.
    """
    if any(isinstance(x, jax.core.Tracer) for x in (block_tables, context_lengths, query_starts)):
        raise ValueError("debug: True needs the batch's numbers; call it outside of jax.jit")
    tables, contexts = np.asarray(block_tables), np.asarray(context_lengths)
    queries = np.diff(np.asarray(query_starts))
    for s, (context, count) in enumerate(zip(contexts, queries, strict=True)):
        if not 0 <= count <= context:
            raise ValueError(
                f"query_starts: sequence {s} has {count} queries, but context_lengths[{s}] is "
                f"{context}; queries are the last tokens of the context"
            )
        live = -(-int(context) // block_size)
        if live > tables.shape[1]:
            raise ValueError(
                f"context_lengths: [{s}] = {context} needs {live} blocks of {block_size}, but "
                f"block_tables has room for {tables.shape[1]}"
            )
        for m, block in enumerate(tables[s, :live]):
            if not 0 <= block < num_blocks:
                raise ValueError(
                    f"block_tables: [{s}, {m}] = {block} is outside of the pool of {num_blocks} "
                    f"blocks, and position {m * block_size} of the sequence is live"
                )
