"""Copy many KV blocks in one call: copy-on-write within a pool, swaps between two."""

from pallas_kernels.block_copy.api import copy_blocks

__all__ = ["copy_blocks"]
