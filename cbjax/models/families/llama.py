"""Llama, and what is built like it, such as SmolLM2: the decoder without switches."""

from cbjax.models.families._family import Family

_LLAMA31_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILY = Family(
    gguf="llama",
    neighbouring_pairs=("gguf",),
    tiny={"tiny": {}, "tiny-llama31": {"rope_parameters": _LLAMA31_ROPE}},
)
