"""Named real-world shapes and batches, shared by tests and benchmarks of every back end.

A batch is written as one `(context length, queries)` pair per sequence: `(300, 1)` decodes,
`(64, 64)` is a whole prompt, `(300, 100)` a later chunk of one, `(0, 0)` an unused sequence.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels import quantised
from pallas_kernels.kv_write import new_kv_cache

Mixture = list[tuple[int, int]]


@dataclass(frozen=True)
class Heads:
    """The attention heads of a model: H query heads, K KV heads, head size D."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def shard(self, ways: int) -> "Heads":
        """The heads of one of `ways` chips that share a model (tensor parallelism).

        With more chips than KV heads, each of these is replicated on several.

        Raises:
            ValueError: the heads cannot be shared out evenly.
        """
        kv_heads = max(self.num_kv_heads // ways, 1)
        even = self.num_heads % ways == 0 and kv_heads * ways % self.num_kv_heads == 0
        if not even or (self.num_heads // ways) % kv_heads:
            raise ValueError(
                f"ways: {ways} cannot share out {self.num_heads} query heads and "
                f"{self.num_kv_heads} KV heads; use a divisor of the query heads that divides, or "
                "is a multiple of, the KV heads"
            )
        return Heads(self.num_heads // ways, kv_heads, self.head_dim)


HEADS = {
    "smollm2-135m": Heads(9, 3, 64),
    "llama3.2-1b": Heads(32, 8, 64),
    "llama3.1-8b": Heads(32, 8, 128),
    "llama3.1-70b": Heads(64, 8, 128),
    "llama3.1-70b-tp8": Heads(8, 1, 128),
    "qwen2.5-0.5b": Heads(14, 2, 64),
    "qwen3-0.6b": Heads(16, 8, 128),
    "phi2-2.7b": Heads(32, 32, 80),
    "phi3-mini": Heads(32, 32, 96),
    "gemma-7b": Heads(16, 16, 256),
}

BLOCK_SIZES = (1, 4, 8, 16, 24, 32, 64, 128, 256)


def decodes(count: int, longest: int = 1024, seed: int = 0) -> Mixture:
    """`count` decodes with log-normal contexts (median 180 tokens) of 8 to `longest` tokens."""
    drawn = np.random.default_rng(seed).lognormal(np.log(180), 0.9, count)
    return [(int(length), 1) for length in np.clip(drawn, 8, longest)]


def mixed(count: int, prefill_tokens: int, seed: int = 0) -> Mixture:
    """`count - 1` decodes and, in their midst, one chunk that ends a prompt of twice its size."""
    mixture = decodes(count - 1, seed=seed)
    mixture.insert(count // 2, (2 * prefill_tokens, prefill_tokens))
    return mixture


def arguments(
    heads: Heads,
    mixture: Mixture,
    *,
    block_size: int,
    tokens: int | None = None,
    sequences: int | None = None,
    table_width: int | None = None,
    num_blocks: int | None = None,
    num_layers: int = 1,
    dtype: str = "float32",
    query_dtype: str = "float32",
    seed: int = 0,
) -> dict[str, Any]:
    """Random arguments of `ragged_paged_attention` for a mixture, less `layer`.

    Blocks are dealt out in a shuffled order, never shared. Every place of the cache holds a
    number, live or not.

    Args:
        heads: H, K, D.
        mixture: the sequences.
        block_size: B.
        tokens, sequences: T and S of the padded batch; what the mixture needs if None.
        table_width: M; what the longest context needs if None.
        num_blocks: N; what the mixture needs, and one, if None.
        num_layers: L.
        dtype: of the cache; query_dtype: of q.
        seed: of everything random.
    """
    rng = np.random.default_rng(seed)
    sequences = max(len(mixture), 1) if sequences is None else sequences
    lengths = np.zeros((sequences, 2), np.int32)
    lengths[: len(mixture)] = np.reshape(np.array(mixture, np.int32), (-1, 2))
    contexts, queries = lengths.T
    blocks = -(-contexts // block_size)
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    tokens = max(int(starts[-1]), 1) if tokens is None else tokens
    table_width = max(int(blocks.max()), 1) if table_width is None else table_width
    num_blocks = int(blocks.sum()) + 1 if num_blocks is None else num_blocks

    tables = np.full((sequences, table_width), -1, np.int32)
    owner = np.full(tokens, sequences, np.int32)
    positions = np.zeros(tokens, np.int32)
    free = list(rng.permutation(num_blocks))
    for s in range(sequences):
        tables[s, : blocks[s]] = [free.pop() for _ in range(blocks[s])]
        owner[starts[s] : starts[s + 1]] = s
        positions[starts[s] : starts[s + 1]] = np.arange(contexts[s] - queries[s], contexts[s])

    keys, values = new_kv_cache(
        num_layers, num_blocks, heads.num_kv_heads, block_size, heads.head_dim, dtype
    )

    def normal(shape: tuple[int, ...]) -> Any:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    return {
        "q": normal((tokens, heads.num_heads, heads.head_dim)).astype(query_dtype),
        "keys": quantised.store(normal(keys.shape), keys.dtype),
        "values": quantised.store(normal(values.shape), values.dtype),
        "block_tables": tables,
        "context_lengths": contexts.copy(),
        "query_starts": starts,
        "sequences": owner,
        "positions": positions,
        "scale": heads.head_dim**-0.5,
    }
