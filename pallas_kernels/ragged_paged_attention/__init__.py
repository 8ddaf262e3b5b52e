"""Causal attention of a ragged batch (prefill chunks and decodes mixed) over a paged KV cache."""

from pallas_kernels.ragged_paged_attention.api import ragged_paged_attention

__all__ = ["ragged_paged_attention"]
