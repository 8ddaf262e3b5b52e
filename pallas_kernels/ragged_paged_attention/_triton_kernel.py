"""The bodies of the GPU kernels: a tile of query rows against a stretch of positions.

Positions are taken `PIECE` at a time through the block table, each with a pointer of its own: any
block size is read by the same code, and rows of a head are what is contiguous in memory anyway.
Sides must be powers of two and products at least 16 rows; what is added is masked.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from pallas_kernels import storage
from pallas_kernels.ragged_paged_attention import _products, _softmax
from pallas_kernels.ragged_paged_attention._spans import LOWEST


@dataclass(frozen=True)
class Fixed:
    """What is known while a kernel is traced."""

    group: int  # query heads per KV head
    padded_group: int  # a power of two
    queries: int  # per tile; queries * padded_group rows, at least 16
    padded_dim: int  # a power of two
    piece: int  # positions per step, a power of two
    warps: int
    splits: int  # most parts that a context is cut into for a decode
    shortest_split: int  # positions
    scale: float
    causal: bool
    window: int | None
    soft_cap: float | None

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.queries * self.padded_group

    def split(self, begin: Any, end: Any) -> Any:
        """Positions per split of a context of which `begin..end-1` are seen: whole pieces."""
        longest = pl.cdiv(pl.cdiv(end - begin, self.splits), self.piece) * self.piece
        return jnp.maximum(longest, self.shortest_split)

    def begin(self, position: Any) -> Any:
        """First position that a query at `position` sees."""
        return 0 if self.window is None else jnp.maximum(position - self.window + 1, 0)


class Cache(NamedTuple):
    """Where keys and values are found; refs."""

    tables: Any  # [S, M]
    layer: Any  # [1]
    keys: Any  # [L, N, K, B, D]
    values: Any
    key_scales: Any = None  # [L, N, K, B]
    value_scales: Any = None


def _product(a: Any, b: Any, trans_b: bool = False) -> Any:
    def dot(a: Any, b: Any) -> Any:
        precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
        return triton.dot(a, b, trans_b=trans_b, precision=precision)

    return _products.product(dot, a, b)


def load_queries(fixed: Fixed, q: Any, token: Any, live: Any, head: Any) -> Any:
    """Rows `[R, D']` of up to `live` queries from `token` on, those of one KV head."""
    index, mask = _rows(fixed, q, token, live, head)
    return triton.load(q.at[index], mask=mask, other=0.0)


def store_results(
    fixed: Fixed, out: Any, token: Any, live: Any, head: Any, result: Any, leading: tuple = ()
) -> None:
    """Put rows `[R, D']` where `load_queries` finds such, in the part of `out` at `leading`."""
    index, mask = _rows(fixed, out, token, live, head)
    leading = tuple(jnp.broadcast_to(x, mask.shape) for x in leading)
    triton.store(out.at[(*leading, *index)], result.astype(out.dtype), mask=mask)


def _rows(fixed: Fixed, array: Any, token: Any, live: Any, head: Any) -> tuple[Any, Any]:
    row = jnp.arange(fixed.rows)
    query, member = row // fixed.padded_group, row % fixed.padded_group
    lane = jnp.arange(fixed.padded_dim)
    wanted = (query < live) & (member < fixed.group)
    mask = wanted[:, None] & (lane < array.shape[-1])[None, :]
    head_index = head * fixed.group + member
    return (
        jnp.broadcast_to((token + query)[:, None], mask.shape),
        jnp.broadcast_to(head_index[:, None], mask.shape),
        jnp.broadcast_to(lane[None, :], mask.shape),
    ), mask


def attend(
    fixed: Fixed, cache: Cache, owner: Any, head: Any, rows: Any, position: Any, begin: Any,
    end: Any,
) -> _softmax.Carry:
    """Fold the positions `begin..end-1` of a sequence into rows at their own positions `[R]`."""
    block_size = cache.keys.shape[3]
    layer = cache.layer[0]
    lane = jnp.arange(fixed.padded_dim)
    shape = (fixed.piece, fixed.padded_dim)

    def step(i: Any, carry: _softmax.Carry) -> _softmax.Carry:
        place = begin + i * fixed.piece + jnp.arange(fixed.piece)
        live = place < end
        column = jnp.where(live, place // block_size, 0)
        block = triton.load(
            cache.tables.at[jnp.broadcast_to(owner, column.shape), column], mask=live, other=0
        )
        index = (
            jnp.broadcast_to(layer, shape),
            jnp.broadcast_to(block[:, None], shape),
            jnp.broadcast_to(head, shape),
            jnp.broadcast_to((place % block_size)[:, None], shape),
            jnp.broadcast_to(lane[None, :], shape),
        )
        # Loads are masked, so that whatever lies in dead places, a NaN even, weighs nothing.
        mask = live[:, None] & (lane < cache.keys.shape[4])[None, :]

        def load(numbers: Any) -> Any:
            if cache.key_scales is None:
                return triton.load(numbers.at[index], mask=mask, other=0.0)
            # Exact: no number of one byte has more digits than bfloat16 has.
            loaded = triton.load(numbers.at[index], mask=mask, other=0)
            return storage.from_bytes(loaded).astype(jnp.bfloat16)

        def scaled(x: Any, scales: Any) -> Any:
            """Columns of `x` times the scales of their positions, if there are such."""
            if scales is None:
                return x
            at = tuple(
                jnp.broadcast_to(i, place.shape) for i in (layer, block, head, place % block_size)
            )
            return x * triton.load(scales.at[at], mask=live, other=0.0)[None, :]

        products = scaled(_product(rows, load(cache.keys), trans_b=True), cache.key_scales)
        scores = _softmax.powers(products, fixed.scale, fixed.soft_cap)
        visible = jnp.broadcast_to(live[None, :], scores.shape)
        if fixed.causal:
            visible &= place[None, :] <= position[:, None]
        if fixed.window is not None:
            visible &= place[None, :] > position[:, None] - fixed.window
        top, factor, weights = _softmax.weigh(carry.top, scores, visible)
        total = carry.total * factor + jnp.sum(weights, axis=1, keepdims=True)
        return _softmax.Carry(
            top, total,
            carry.acc * factor
            + _product(scaled(weights, cache.value_scales).astype(rows.dtype), load(cache.values)),
        )

    empty = _softmax.Carry(
        jnp.full((fixed.rows, 1), LOWEST), jnp.zeros((fixed.rows, 1)),
        jnp.zeros((fixed.rows, fixed.padded_dim)),
    )
    return lax.fori_loop(0, pl.cdiv(end - begin, fixed.piece), step, empty)


def prefill(fixed: Fixed, *refs: Any) -> None:
    """Program (tile, head): all that the tile's queries see, written to their rows of `out`."""
    contexts, starts, owners, firsts, count, q, *cache_refs, _zeros, out = refs
    tile, head = pl.program_id(0), pl.program_id(1)
    cache = Cache(*cache_refs)

    @pl.when(tile < count[0])
    def _():
        owner, first = triton.load(owners.at[tile]), triton.load(firsts.at[tile])
        start = triton.load(starts.at[owner])
        queries = triton.load(starts.at[owner + 1]) - start
        live = jnp.minimum(queries - first, fixed.queries)
        position = triton.load(contexts.at[owner]) - queries + first
        rows = load_queries(fixed, q, start + first, live, head)
        own = position + jnp.arange(fixed.rows) // fixed.padded_group
        begin = fixed.begin(position)
        end = position + live if fixed.causal else triton.load(contexts.at[owner])
        carry = attend(fixed, cache, owner, head, rows, own, begin, end)
        result = carry.acc / jnp.where(carry.total == 0.0, 1.0, carry.total)
        store_results(fixed, out, start + first, live, head, result)


def decode(fixed: Fixed, *refs: Any) -> None:
    """Program (tile, head, split): a part of one sequence's context, kept apart for the reduction.

    Programs beyond the live tiles and splits write nothing.
    """
    contexts, starts, owners, count, q, *cache_refs, tops, totals, accs = refs
    tile, head, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    owner = triton.load(owners.at[tile])
    end = triton.load(contexts.at[owner])
    begin = fixed.begin(end - 1)
    length = fixed.split(begin, end)
    first = begin + split * length

    @pl.when((tile < count[0]) & (first < end))
    def _():
        token = triton.load(starts.at[owner])
        rows = load_queries(fixed, q, token, 1, head)
        own = jnp.broadcast_to(end - 1, (fixed.rows,))
        last = jnp.minimum(first + length, end)
        carry = attend(fixed, Cache(*cache_refs), owner, head, rows, own, first, last)
        member = jnp.arange(fixed.rows)
        heads = head * fixed.group + member
        for array, numbers in ((tops, carry.top), (totals, carry.total)):
            column = jnp.sum(numbers, axis=1)  # of one number: the last axis away
            at = (jnp.broadcast_to(split, heads.shape), jnp.broadcast_to(tile, heads.shape), heads)
            triton.store(array.at[at], column, mask=member < fixed.group)
        store_results(fixed, accs, tile, 1, head, carry.acc, leading=(split,))
