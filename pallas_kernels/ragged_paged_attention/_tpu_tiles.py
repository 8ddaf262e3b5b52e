"""How large the pieces are that the TPU kernel works on: a table, and the rule that reads it.

Chosen by what the real compiler reports (VMEM, spills), not by a clock: no TPU was at hand.
"""

from dataclasses import dataclass

LANES, SUBLANES = 128, 8


@dataclass(frozen=True)
class Targets:
    """What to aim at on one generation of chips."""

    rows: int  # query rows per KV head in one product
    positions: int  # KV positions in one step
    query_bytes: int  # VMEM for a tile of queries, and as much for its results
    kv_bytes: int  # VMEM for the pages of two steps, keys and values


TARGETS = Targets(rows=256, positions=256, query_bytes=2 << 20, kv_bytes=6 << 20)


@dataclass(frozen=True)
class Tile:
    """Sizes of one kernel."""

    queries: int  # of one prefill tile
    pages: int  # fetched per step


def choose(
    num_tokens: int, num_kv_heads: int, group: int, head_dim: int, block_size: int,
    table_width: int, query_bytes: int, kv_bytes: int, targets: Targets | None = None,
) -> Tile:
    """The tile for one shape: as near to the targets as VMEM allows.

    Args:
        num_tokens, num_kv_heads, group, head_dim, block_size, table_width: T, K, H/K, D, B, M.
        query_bytes, kv_bytes: bytes of one number of q and of the cache.
        targets: what to aim at; `TARGETS` if None.
    """
    targets = targets or TARGETS
    padded_dim = -(-head_dim // LANES) * LANES

    def padded(rows: int, item: int) -> int:
        packed = SUBLANES * 4 // item
        return -(-rows // packed) * packed * padded_dim * item

    queries = 1
    per_query = num_kv_heads * padded(group, query_bytes)
    while (
        2 * queries * group <= targets.rows
        and 2 * queries * per_query <= targets.query_bytes
        and 2 * queries <= max(num_tokens, 2)
    ):
        queries *= 2
    per_page = 4 * num_kv_heads * padded(block_size, kv_bytes)
    pages = min(targets.positions // block_size, targets.kv_bytes // per_page, table_width)
    return Tile(max(queries, 2), max(pages, 1))
