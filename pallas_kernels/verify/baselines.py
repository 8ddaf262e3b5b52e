"""Attention of others on the same numbers: jax's over pages, XLA's and cuDNN's on KV in one piece.

Each is called as `(given, mixture, scale, interpreted)` with the arguments of our own kernel, of
which all sequences are alike, and returns a function without arguments that computes rows
`[T, H, D]`. Whatever keeps one from running on a machine is an exception, which becomes its reason.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Call = Callable[[], Any]
Make = Callable[[dict[str, Any], list[tuple[int, int]], float, bool], Call]


def difference(found: Any, expected: Any) -> float:
    """Greatest difference of rows `[T, H, D]`, each as a share of its greatest number.

    Averages over long contexts are small: a block left out would hide in an absolute bound.
    """
    found, expected = (x.astype(jnp.float32) for x in (found, expected))
    size = jnp.maximum(jnp.max(jnp.abs(expected), axis=-1), 1e-6)
    return float(jnp.max(jnp.max(jnp.abs(found - expected), axis=-1) / size))


def compare(
    back_end: str, given: dict[str, Any], mixture: list[tuple[int, int]], scale: float,
    expected: Any, seconds: Callable[[Call], float], interpreted: bool,
) -> dict[str, Any]:
    """Seconds of each, and its `difference` from XLA's numbers; "absent: reason" where it fails.

    Args:
        back_end: of our kernel; jax's own for the same platform is taken.
        given, mixture, scale: what ours is called with.
        expected: XLA's result over pages.
        seconds: how a call is timed.
        interpreted: no chip is here; the way to each is rehearsed all the same.
    """
    row: dict[str, Any] = {}
    for name, make in of(back_end).items():
        try:
            call = make(given, mixture, scale, interpreted)
            row[f"{name}_error"] = difference(call(), expected)
            row[f"{name}_seconds"] = seconds(call)
        except Exception as problem:  # whatever keeps it from running here
            words = " ".join(str(problem).split())[:160]
            row[f"{name}_seconds"] = f"absent: {type(problem).__name__}: {words}"
    return row


def of(back_end: str) -> dict[str, Make]:
    """The ones to hold a back end against."""
    theirs = {"triton": _jax_on_gpu, "tpu": _jax_on_tpu}
    paged = {"jax_paged": theirs[back_end]} if back_end in theirs else {}
    return {**paged, "contiguous_xla": _contiguous("xla"), "contiguous_cudnn": _contiguous("cudnn")}


def _jax_on_gpu(given: Any, mixture: Any, scale: float, interpreted: bool) -> Call:
    if mixture[0][1] > 1:
        raise NotImplementedError("jax's paged attention for GPU takes decodes only")
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    keys, values = (jnp.swapaxes(given[n][0], 0, 1) for n in ("keys", "values"))
    width = given["block_tables"].shape[1]
    splits = math.gcd(width, 16)
    call = jax.jit(lambda q, keys, values, tables, lengths: paged_attention(
        q * scale, keys, values, tables, lengths, k_splits=splits,
        pages_per_compute_block=math.gcd(width // splits, 8), interpret=interpreted,
    ))
    arguments = given["q"], keys, values, given["block_tables"], given["context_lengths"]
    return lambda: call(*arguments)


def _jax_on_tpu(given: Any, mixture: Any, scale: float, interpreted: bool) -> Call:
    from jax.experimental.pallas.ops.tpu import ragged_paged_attention as theirs

    keys, values = (jnp.swapaxes(given[n][0], 1, 2) for n in ("keys", "values"))
    pages = jnp.stack([keys, values], axis=3)  # [N, B, K, 2, D]: keys and values in turn
    pages = pages.reshape(*keys.shape[:2], -1, keys.shape[3])
    # It runs in no interpreter; its own definition takes the same arguments.
    attend = theirs.ref_ragged_paged_attention if interpreted else jax.jit(
        theirs.ragged_paged_attention, static_argnames="sm_scale"
    )
    arguments = (
        given["q"], pages, given["context_lengths"], given["block_tables"], given["query_starts"],
        jnp.asarray([len(mixture)], jnp.int32),
    )
    return lambda: attend(*arguments, sm_scale=scale)


def _contiguous(implementation: Any) -> Make:
    """With KV in one piece per sequence: what paging is held against."""

    def make(given: Any, mixture: Any, scale: float, interpreted: bool) -> Call:
        del interpreted
        (context, queries), count = mixture[0], len(mixture)
        q = given["q"].reshape(count, queries, *given["q"].shape[1:])

        def in_one_piece(cache: Any) -> Any:
            rows = jnp.swapaxes(cache[0][given["block_tables"]], 2, 3)  # [S, M, B, K, D]
            return rows.reshape(count, -1, *rows.shape[3:])[:, :context, :, : q.shape[-1]]

        keys, values = (in_one_piece(given[n]) for n in ("keys", "values"))
        call = jax.jit(lambda q, keys, values: jax.nn.dot_product_attention(
            q, keys, values, scale=scale, is_causal=queries > 1, implementation=implementation
        ))
        return lambda: call(q, keys, values).reshape(given["q"].shape)

    return make
