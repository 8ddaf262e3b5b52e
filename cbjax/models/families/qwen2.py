"""Qwen2 and Qwen2.5: biases on q, k and v."""

from cbjax.models.families._family import Family, window_if_used

FAMILY = Family(
    switches={"qkv_bias": True},
    in_llamas_words=window_if_used,
    gguf="qwen2",
    # Rows of the embedding that no token uses, as in the published Qwen2.5 models.
    tiny={"tiny-qwen2": {"vocab_size": 320, "tie_word_embeddings": True}},
)
