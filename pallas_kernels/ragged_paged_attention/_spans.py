"""Spans: runs of KV positions, the unit that the XLA attention loops gather and multiply.

A small block alone would make small products, so several are taken together; a large one is cut.
A span has `SPAN` positions for every block size that divides it or that it divides, else as many
whole blocks as come near. The softmax over spans is the online one, except that the
running maximum is rounded up to an integer: with weights in powers of two, rescaling then
multiplies by an exact power of two and loses nothing, so that only the order of the spans matters,
which is fixed.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pallas_kernels import quantised, storage
from pallas_kernels.quantised import Cache

SPAN = 64
LOWEST = -1e30  # a score that weighs nothing; finite, so that differences of it are numbers


class Spans(NamedTuple):
    """A cache seen through the block tables of a batch, in spans of `length` positions.

    Blocks are stored as rows, one per KV head and *part*: a block longer than a span has several.
    """

    keys: Array  # [L*N*K*parts, B/parts * D]
    values: Array  # [L*N*K*parts, B/parts * D]
    key_scales: Array | None  # [L*N*K*parts, B/parts]
    value_scales: Array | None
    tables: Array  # [S, ceil(M/g), g] the g blocks of each span
    first_block: Array  # scalar, layer * N
    num_kv_heads: int
    block_size: int
    head_dim: int
    parts: int
    window: int | None
    soft_cap: float | None

    @classmethod
    def of(
        cls, keys: Cache, values: Cache, layer: ArrayLike, block_tables: Array,
        window: int | None, soft_cap: float | None,
    ) -> "Spans":
        """View `[L, N, K, B, D]` caches and `[S, M]` tables as spans, copying nothing large."""
        _, num_blocks, num_kv_heads, block_size, head_dim = keys.shape
        num_sequences, table_width = block_tables.shape
        parts = block_size // SPAN if block_size % SPAN == 0 else 1
        blocks = max(SPAN // block_size, 1)
        tables = jnp.pad(jnp.maximum(block_tables, 0), ((0, 0), (0, -table_width % blocks)))

        def rows(cache: Cache) -> tuple[Array, Array | None]:
            numbers, scales = quantised.parts(cache)
            if scales is not None:
                scales = scales[:, :, :num_kv_heads, :block_size].reshape(-1, block_size // parts)
            return numbers.reshape(-1, block_size // parts * head_dim), scales

        (key_rows, key_scales), (value_rows, value_scales) = rows(keys), rows(values)
        return cls(
            key_rows,
            value_rows,
            key_scales,
            value_scales,
            tables.reshape(num_sequences, -1, blocks),
            jnp.asarray(layer) * num_blocks,
            num_kv_heads,
            block_size,
            head_dim,
            parts,
            window,
            soft_cap,
        )

    @property
    def length(self) -> int:
        """Positions per span."""
        return self.tables.shape[2] * self.block_size // self.parts

    @property
    def per_sequence(self) -> int:
        """Spans that a block table can name."""
        return self.tables.shape[1] * self.parts

    def query_factor(self, scale: float) -> float:
        """What queries are multiplied by before the products: the softmax is in powers of two."""
        return scale * math.log2(math.e) if self.soft_cap is None else scale / self.soft_cap

    def scores(self, products: Array) -> Array:
        """Scores as exponents of two, from products with queries times `query_factor`."""
        if self.soft_cap is None:
            return products
        return jnp.tanh(products) * (self.soft_cap * math.log2(math.e))

    def begin(self, position: Array) -> Array:
        """The first position that a query at `position` sees."""
        if self.window is None:
            return jnp.zeros_like(position)
        return jnp.maximum(position - self.window + 1, 0)

    def gather(
        self, sequence: Array, index: Array, live: Array, dead: Array
    ) -> tuple[Array, Array]:
        """Keys and values `[..., K, P, D]` of span `index[...]` of `sequence[...]`, float32.

        Values beyond the `live[...]` first positions of the span, and within the `dead[...]` first,
        read as 0: whatever a released request left there, a NaN even, reaches nobody. Keys are
        returned as they are.
        """
        blocks = self.tables[sequence, index // self.parts]  # [..., g]
        heads = jnp.arange(self.num_kv_heads)[:, None]
        rows = (self.first_block + blocks[..., None, :]) * self.num_kv_heads + heads
        rows = rows * self.parts + (index % self.parts)[..., None, None]
        # Masked while still in rows: a long innermost loop is what XLA vectorises best.
        width = self.block_size // self.parts
        before = jnp.arange(blocks.shape[-1]) * width
        live_rows, dead_rows = live[..., None] - before, dead[..., None] - before

        def read(cache: Array, numbers: int, masked: bool) -> Array:
            """Rows with `numbers` per position, 0 at places that nobody sees."""
            found = cache.at[rows].get(mode="promise_in_bounds")
            if not masked:
                return found
            place = jnp.arange(width * numbers)
            present = place < (live_rows * numbers)[..., None, :, None]
            if self.window is not None:
                present &= place >= (dead_rows * numbers)[..., None, :, None]
            return jnp.where(present, found, 0)

        def numbers(cache: Array, scales: Array | None, masked: bool) -> Array:
            shape = (*rows.shape[:-2], self.num_kv_heads, self.length)
            found = storage.from_storage(read(cache, self.head_dim, masked))
            found = found.reshape(*shape, self.head_dim)
            return found if scales is None else found * read(scales, 1, masked).reshape(shape)[
                ..., None
            ]

        return (
            numbers(self.keys, self.key_scales, False),
            numbers(self.values, self.value_scales, True),
        )


def weigh(scores: Array, visible: Array) -> tuple[Array, Array]:
    """Weights `2 ** (scores - top)` of visible scores, 0 for the others, and the integer top."""
    scores = jnp.where(visible, scores, LOWEST)
    top = jnp.maximum(jnp.ceil(jnp.max(scores, axis=-1)), LOWEST / 2)
    return jnp.exp2(scores - top[..., None]), top


def normalise(acc: Array, total: Array) -> Array:
    """Weighted values over their total weight; 0 where nothing was visible."""
    return acc / jnp.where(total == 0.0, 1.0, total)[..., None]
