"""The one function that a model calls for attention over the paged KV cache."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels import backends, storage
from pallas_kernels.quantised import Quantised
from pallas_kernels.ragged_paged_attention import _check


def ragged_paged_attention(
    q: Float[Array, "T H D"],
    keys: Shaped[Array, "L N K B D"] | Quantised,
    values: Shaped[Array, "L N K B D"] | Quantised,
    layer: ArrayLike,
    *,
    block_tables: Int[Array, "S M"],
    context_lengths: Int[Array, "S"],
    query_starts: Int[Array, "S+1"],
    sequences: Int[Array, "T"],
    positions: Int[Array, "T"],
    scale: float,
    causal: bool = True,
    window: int | None = None,
    soft_cap: float | None = None,
    implementation: str | None = None,
    debug: bool = False,
) -> Float[Array, "T H D"]:
    """Attention of every token over the KV of its own sequence, causal or not, grouped-query.

    Sequence s owns the tokens `query_starts[s] .. query_starts[s+1]-1`, which are the *last* ones
    of its context: token i of its n queries stands at position `context_lengths[s] - n + i` and
    sees the positions up to and including its own. With h' = h // (H/K):

        out[t, h] = softmax_j(scale * q[t, h] . key[j, h'] for j <= position(t)) . value[:, h']

    If not causal, j runs over the whole context. With a window, only j > position(t) - window; with
    a soft cap, scores become `soft_cap * tanh(score / soft_cap)` before the softmax.

    Softmax and sums are float32. Padding tokens give exactly 0; unused sequences cost nothing.
    Table entries beyond a sequence's live blocks, and those wholly before the windows of its
    queries, are never relied upon.

    Args:
        q: `[T, H, D]` queries, rotary embedding applied; float32 or bfloat16.
        keys, values: `[L, N, K, B, D]` from `new_kv_cache`, this iteration's rows written; those
            of one byte per number come with their scales.
        layer: which layer, a Python or traced integer.
        block_tables: `[S, M]` logical -> physical block; NO_BLOCK (-1) where none.
        context_lengths: `[S]` tokens in the cache per sequence, new ones included; 0 = unused.
        query_starts: `[S+1]` first token of each sequence; unused ones repeat the total.
        sequences: `[T]` sequence of each token; S on padding.
        positions: `[T]` position of each token in its sequence (as defined above); 0 on padding.
        scale: multiplies the scores, usually `D ** -0.5`; a Python number.
        causal: whether a token sees no position after its own; False: the whole context.
        window: most recent positions that a token sees, itself included (sliding window).
        soft_cap: bound of the scores, as in Gemma 2.
        implementation: name of a back end ("reference", "xla", ...), or None for the best here.
        debug: look at the numbers too (outside of jit): a live table entry outside of the pool is
            an error.

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
    _check.check_arrays(q, keys, values)
    _check.check_numbers(scale, causal, window, soft_cap)
    _check.check_batch(
        q.shape[0], block_tables, context_lengths, query_starts, sequences, positions
    )
    if debug:
        _check.check_values(
            keys.shape[1], keys.shape[3], block_tables, context_lengths, query_starts
        )
    head_dim, q = q.shape[2], storage.widen(q, keys.shape[4], "q")
    backend = backends.choose(
        "pallas_kernels.ragged_paged_attention", "ragged_paged_attention", implementation,
        q, keys, block_tables,
    )
    out = backend(
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
        causal=causal,
        window=window,
        soft_cap=soft_cap,
    )
    return out[..., :head_dim]
