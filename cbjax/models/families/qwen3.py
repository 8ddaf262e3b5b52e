"""Qwen3: a norm of each head of q and k; heads may be wider than the stream divided by them."""

from cbjax.models.families._family import Family, window_if_used

FAMILY = Family(
    switches={"qk_norm": True},
    in_llamas_words=window_if_used,
    gguf="qwen3",
    tiny={"tiny-qwen3": {"head_dim": 32}},
)
