"""The one function that a model calls for attention over the paged KV cache."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels import backends, storage

QUERY_DTYPES = ("float32", "bfloat16")


def ragged_paged_attention(
    q: Float[Array, "T H D"],
    keys: Shaped[Array, "L N K B D"],
    values: Shaped[Array, "L N K B D"],
    layer: ArrayLike,
    *,
    block_tables: Int[Array, "S M"],
    context_lengths: Int[Array, "S"],
    query_starts: Int[Array, "S+1"],
    sequences: Int[Array, "T"],
    positions: Int[Array, "T"],
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    implementation: str | None = None,
) -> Float[Array, "T H D"]:
    """Attention of every token over the KV of its own sequence, causal, grouped-query.

    Sequence s owns the tokens `query_starts[s] .. query_starts[s+1]-1`, which are the *last* ones
    of its context: token i of its n queries stands at position `context_lengths[s] - n + i` and
    sees the positions up to and including its own. With h' = h // (H/K):

        out[t, h] = softmax_j(scale * q[t, h] . key[j, h'] for j <= position(t)) . value[:, h']

    With a window, only j > position(t) - window; with a soft cap, scores become
    `soft_cap * tanh(score / soft_cap)` before the softmax.

    Softmax and sums are float32. Padding tokens give exactly 0; unused sequences cost nothing.
    Table entries beyond a sequence's live blocks, and those wholly before the windows of its queries,
    are never relied upon.

    Args:
        q: `[T, H, D]` queries, rotary embedding applied; float32 or bfloat16.
        keys, values: `[L, N, K, B, D]` from `new_kv_cache`, this iteration's rows written.
        layer: which layer, a Python or traced integer.
        block_tables: `[S, M]` logical -> physical block; NO_BLOCK (-1) where none.
        context_lengths: `[S]` tokens in the cache per sequence, new ones included; 0 = unused.
        query_starts: `[S+1]` first token of each sequence; unused ones repeat the total.
        sequences: `[T]` sequence of each token; S on padding.
        positions: `[T]` position of each token in its sequence (as defined above); 0 on padding.
        scale: multiplies the scores, usually `D ** -0.5`.
        window: most recent positions that a token sees, itself included (sliding window).
        soft_cap: bound of the scores, as in Gemma 2.
        implementation: name of a back end ("reference", "xla", ...), or None for the best here.

    Returns:
        `[T, H, D]`, dtype of `q`.

    Raises:
        ValueError: shapes or dtypes that do not belong together, or an implementation that is
            unknown or unfit.

    The flattened ragged batch follows "Ragged Paged Attention" (the jax TPU kernel of that name);
    blocks follow PagedAttention (Kwon et al., 2023).
    """
    # Outside jit the batch may be numpy arrays, which traced indices cannot index.
    block_tables, context_lengths = jnp.asarray(block_tables), jnp.asarray(context_lengths)
    query_starts, sequences = jnp.asarray(query_starts), jnp.asarray(sequences)
    positions = jnp.asarray(positions)
    _check_arrays(q, keys, values)
    for name, number in (("window", window), ("soft_cap", soft_cap)):
        if number is not None and not number > 0:
            raise ValueError(f"{name}: {number} is not supported; give a positive number or None")
    _check_batch(q.shape[0], block_tables, context_lengths, query_starts, sequences, positions)
    backend = backends.choose(
        "pallas_kernels.ragged_paged_attention", "ragged_paged_attention", implementation,
        q, keys, block_tables,
    )
    return backend(
        q,
        keys,
        values,
        layer,
        block_tables=block_tables,
        context_lengths=context_lengths,
        query_starts=query_starts,
        sequences=sequences,
        positions=positions,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
    )


def _check_arrays(q: Array, keys: Array, values: Array) -> None:
    if q.ndim != 3 or q.dtype.name not in QUERY_DTYPES:
        raise ValueError(
            f"q: {q.dtype}{list(q.shape)} is not supported; pass [T, H, D] of {QUERY_DTYPES}"
        )
    if keys.ndim != 5 or values.shape != keys.shape or values.dtype != keys.dtype:
        raise ValueError(
            f"keys, values: {keys.dtype}{list(keys.shape)} and {values.dtype}{list(values.shape)} "
            "must be one [L, N, K, B, D] shape and dtype, as made by new_kv_cache"
        )
    if keys.dtype.name not in storage.STORED_DTYPES:
        raise ValueError(
            f"keys: dtype {keys.dtype} is not supported; use one of {storage.STORED_DTYPES}"
        )
    if q.shape[2] != keys.shape[4]:
        raise ValueError(
            f"q: head size {q.shape[2]} must equal the cache's head size {keys.shape[4]}"
        )
    if q.shape[1] % keys.shape[2]:
        raise ValueError(
            f"q: {q.shape[1]} query heads are not a multiple of the cache's {keys.shape[2]} "
            "KV heads; every KV head serves the same number of query heads"
        )


def _check_batch(
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
