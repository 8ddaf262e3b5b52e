"""Write the keys and values of a ragged batch into their KV blocks, in place."""

from pallas_kernels.kv_write.api import new_kv_cache, write_kv

__all__ = ["new_kv_cache", "write_kv"]
