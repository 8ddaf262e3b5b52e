"""Kernels of the paged KV cache, usable without the rest of the project (imports jax only).

One folder per kernel: `api.py` (the public function), one file per back end, and where they are
not trivial `reference.py` (plain JAX, the definition) and `shapes.py` (real-world shapes shared by
tests and benchmarks). A back end is chosen by the name of its file; see `backends.py`.

    from pallas_kernels.kv_write import new_kv_cache, write_kv
    from pallas_kernels.ragged_paged_attention import ragged_paged_attention

Nothing is re-exported here: a function would hide the package of the same name.
"""
