"""Kernels of the paged KV cache, usable without the rest of the project (imports jax only).

One folder per kernel: `api.py` (the one public function), `reference.py` (plain JAX, the
definition), one file per back end, `shapes.py` (real-world shapes shared by tests and benchmarks).
A back end is chosen by the name of its file; see `backends.py`.
"""

from pallas_kernels.kv_write.api import new_kv_cache, write_kv
from pallas_kernels.ragged_paged_attention.api import ragged_paged_attention

__all__ = ["new_kv_cache", "ragged_paged_attention", "write_kv"]
