"""How many KV blocks there is room for."""

import jax
import psutil


def free_bytes() -> int:
    """Memory that jax's first device could still hand out; on a CPU the machine's free memory."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return psutil.virtual_memory().available


def blocks_in(fraction: float, block_bytes: int, most: int) -> int:
    """KV blocks that fit a fraction of the free memory, at most as many as can be used.

    Args:
        fraction: share of the free memory, 0 < fraction <= 1.
        block_bytes: memory of one block.
        most: blocks that full seats of longest sequences would use.

    Raises:
        ValueError: the fraction is impossible or holds not even one block.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"kv_memory_fraction = {fraction}: give a share, 0 < fraction <= 1")
    blocks = int(free_bytes() * fraction) // block_bytes
    if blocks < 1:
        raise ValueError(
            f"kv_memory_fraction = {fraction} of the free memory holds no KV block of "
            f"{block_bytes} bytes: raise it, use smaller blocks or name num_blocks"
        )
    return min(blocks, most)
