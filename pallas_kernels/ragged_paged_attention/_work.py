"""Lists of what is live in a batch, from which the Pallas kernels take their work.

A tile is a run of at most `size` consecutive queries of one sequence. Decodes (one query) and
prefill chunks (several) get a list each, since tiles of one size would waste most of their rows.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int


class Tiles(NamedTuple):
    """A padded list of tiles; entries from `live` on mean nothing."""

    owner: Int[Array, "I"]  # sequence
    first: Int[Array, "I"]  # first query of the tile, counted within its sequence
    live: Int[Array, ""]


def decode_tiles(context_lengths: Array, query_starts: Array, num_tokens: int) -> Tiles:
    """One tile per sequence that has exactly one query."""
    return _tiles(query_starts, (context_lengths > 0), 1, 1, num_tokens)


def prefill_tiles(
    context_lengths: Array, query_starts: Array, num_tokens: int, size: int
) -> Tiles:
    """Tiles of `size` queries of the sequences that have two or more."""
    return _tiles(query_starts, (context_lengths > 0), size, 2, num_tokens)


def _tiles(starts: Array, used: Array, size: int, least: int, num_tokens: int) -> Tiles:
    lengths = starts[1:] - starts[:-1]
    wanted = used & ((lengths == 1) if least == 1 else (lengths >= least))
    counts = jnp.where(wanted, -(-lengths // size), 0)
    ends = jnp.cumsum(counts)
    sequences = min(lengths.shape[0], max(num_tokens // least, 1))
    bound = sequences + (num_tokens // size if least > 1 else 0)
    index = jnp.arange(bound, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, index, side="right", method="compare_all").astype(jnp.int32)
    owner = jnp.minimum(owner, lengths.shape[0] - 1)
    first = (index - (ends - counts)[owner]) * size
    return Tiles(owner, first.astype(jnp.int32), ends[-1].astype(jnp.int32))
