"""What a decoder looks like, as one frozen, hashable record.

A record says which tensors exist and how they are used, never what they hold, so that it can be a
static argument of a compiled program. Both readers (Hugging Face `config.json` and GGUF metadata)
refuse what the decoder does not compute, naming the field: a model that loads but reads its
weights wrongly writes fluent nonsense.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")


class UnsupportedModelError(ValueError):
    """The model asks for something that the decoder does not compute."""


@dataclass(frozen=True)
class ModelConfig:
    """One decoder of the Llama kind: RMS norm, rotary positions, grouped queries, SwiGLU.

    Sizes are in the letters of the project: L layers, H query heads, K KV heads, D head size,
    V vocabulary; E is the width of the residual stream and F that of the feed-forward layer.
    """

    family: str
    vocab_size: int  # V, rows of the embedding; may exceed what the tokenizer knows
    hidden_size: int  # E
    num_layers: int  # L
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # D
    ffn_size: int  # F
    max_length: int  # positions the model was made for
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_divisors: tuple[float, ...] = ()  # [D/2] slow-downs of the rotary frequencies; () = none
    qkv_bias: bool = False
    qk_norm: bool = False  # RMS norm of each head of q and k
    tied: bool = True  # the head is the embedding
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_kv_heads", "ffn_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is too small; at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: {self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: {self.head_dim} is odd; rotary positions turn pairs")
        if self.rope_divisors and len(self.rope_divisors) != self.head_dim // 2:
            raise ValueError(
                f"rope_divisors: {len(self.rope_divisors)} given, head_dim={self.head_dim} "
                f"needs {self.head_dim // 2} or none"
            )

    def rotary_frequencies(self) -> np.ndarray:
        """Angle per position of each rotated pair, `[D/2]` float32 radians (RoFormer, 2021)."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies = 1 / np.power(np.float32(self.rope_theta), exponents, dtype=np.float32)
        divisors = np.asarray(self.rope_divisors or (1.0,), np.float32)
        return np.asarray(frequencies / divisors, np.float32)

    def with_eos_ids(self, *sources: Sequence[int]) -> "ModelConfig":
        """The same model, ended by any id of any source as well as by its own."""
        ids = sorted({int(i) for source in (self.eos_ids, *sources) for i in source})
        return dataclasses.replace(self, eos_ids=tuple(ids))


def config_from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """Read the dictionary of a Hugging Face `config.json` (transformers 4 and 5 spellings).

    Raises:
        UnsupportedModelError: unknown architecture, or a setting that the decoder lacks.
        ValueError: a field is missing or impossible.
    """
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModelError(
            f"model_type: {family!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    missing = [k for k in ("vocab_size", "hidden_size", "num_hidden_layers") if k not in raw]
    missing += [k for k in ("num_attention_heads", "intermediate_size") if k not in raw]
    if missing:
        raise ValueError(f"config.json: {', '.join(missing)} missing; is the file complete?")
    heads = int(raw["num_attention_heads"])
    head_dim = int(raw.get("head_dim") or raw["hidden_size"] // heads)
    max_length = int(raw.get("max_position_embeddings") or 2048)
    _refuse_unsupported_hf(raw, family, max_length)
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    return ModelConfig(
        family=family,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        ffn_size=int(raw["intermediate_size"]),
        max_length=max_length,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_divisors=_rope_divisors(rope, theta, head_dim),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied=bool(raw.get("tie_word_embeddings", False)),
        eos_ids=as_ids(raw.get("eos_token_id")),
        bos_id=raw.get("bos_token_id"),
    )


def config_from_gguf(
    metadata: Mapping[str, Any], *, tied: bool, rope_factors: Sequence[float] = ()
) -> ModelConfig:
    """Read GGUF metadata (key -> Python value).

    Args:
        metadata: the key-value part of the file.
        tied: whether the file has no `output.weight`; GGUF has no field for it.
        rope_factors: the tensor `rope_freqs.weight`, `[D/2]`, if the file has one.

    Raises:
        UnsupportedModelError: unknown architecture, or a setting that the decoder lacks.
        ValueError: a field is missing or impossible.
    """
    family = metadata.get("general.architecture")
    if family not in GGUF_ARCHITECTURES:
        raise UnsupportedModelError(
            f"general.architecture: {family!r} is not supported; supported are "
            f"{', '.join(GGUF_ARCHITECTURES)} (Mistral files call themselves llama)"
        )

    def field(name: str, default: Any = None) -> Any:
        value = metadata.get(f"{family}.{name}", default)
        if value is None:
            raise ValueError(f"GGUF: the field {family}.{name} is missing; is the file complete?")
        return value

    heads, hidden = field("attention.head_count"), field("embedding_length")
    head_dim = int(field("attention.key_length", hidden // heads))
    max_length = int(field("context_length"))
    theta = float(field("rope.freq_base", 10000.0))
    _refuse_unsupported_gguf(field, head_dim, max_length)
    rope = {"rope_type": field("rope.scaling.type", "none")}
    rope["factor"] = field("rope.scaling.factor", 1.0)
    return ModelConfig(
        family=family,
        vocab_size=len(metadata.get("tokenizer.ggml.tokens", ())) or int(field("vocab_size")),
        hidden_size=int(hidden),
        num_layers=int(field("block_count")),
        num_heads=int(heads),
        num_kv_heads=int(field("attention.head_count_kv", heads)),
        head_dim=head_dim,
        ffn_size=int(field("feed_forward_length")),
        max_length=max_length,
        norm_eps=float(np.float32(field("attention.layer_norm_rms_epsilon"))),
        rope_theta=theta,
        rope_divisors=tuple(map(float, rope_factors)) or _rope_divisors(rope, theta, head_dim),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied=tied,
        eos_ids=tuple(sorted(_gguf_ids(metadata, "eos", "eot", "eom"))),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
    )


def as_ids(value: Any) -> tuple[int, ...]:
    """Token ids from a field that holds none, one or several."""
    if value is None:
        return ()
    return tuple(int(i) for i in value) if isinstance(value, list | tuple) else (int(value),)


def _gguf_ids(metadata: Mapping[str, Any], *names: str) -> set[int]:
    found = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names)
    return {int(i) for i in found if i is not None}


def _refuse_unsupported_hf(raw: Mapping[str, Any], family: str, max_length: int) -> None:
    window = raw.get("sliding_window")
    if family in ("qwen2", "qwen3"):
        first_windowed = int(raw.get("max_window_layers", 0))
        windowed = raw.get("use_sliding_window", False)
        if not windowed or first_windowed >= int(raw["num_hidden_layers"]):
            window = None
    if window is not None and int(window) < max_length:
        _refuse_window("sliding_window", int(window), max_length)
    plain = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0}
    if family != "qwen2":
        plain["attention_bias"] = False
    for name, expected in plain.items():
        if raw.get(name, expected) not in (expected, None):
            raise UnsupportedModelError(
                f"{name}: {raw[name]!r} is not supported; the decoder has {expected!r}"
            )


def _refuse_unsupported_gguf(field: Any, head_dim: int, max_length: int) -> None:
    if 0 < int(field("attention.sliding_window", 0)) < max_length:
        _refuse_window("attention.sliding_window", field("attention.sliding_window"), max_length)
    if int(field("rope.dimension_count", head_dim)) != head_dim:
        raise UnsupportedModelError(
            f"rope.dimension_count: {field('rope.dimension_count')} is not supported; "
            f"the decoder turns whole heads ({head_dim})"
        )
    if int(field("expert_count", 0)):
        raise UnsupportedModelError(
            f"expert_count: {field('expert_count')}: mixtures of experts are not supported"
        )


def _refuse_window(name: str, window: int, max_length: int) -> None:
    raise UnsupportedModelError(
        f"{name}: {window} is not supported: windowed layers need their own KV blocks, and full "
        f"attention would differ beyond position {window} of {max_length}; use a version of the "
        "model without a sliding window"
    )


def _rope_divisors(rope: Mapping[str, Any], theta: float, head_dim: int) -> tuple[float, ...]:
    """How much slower each rotated pair turns than in the plain scheme."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in ("default", "none"):
        return ()
    factor = float(rope.get("factor") or 1.0)
    pairs = head_dim // 2
    if kind == "linear":
        return (factor,) * pairs
    if kind != "llama3":
        raise UnsupportedModelError(
            f"rope_type: {kind!r} is not supported; supported are default, linear and llama3"
        )
    # Llama 3.1: wavelengths short against the original context stay, long ones are stretched by
    # `factor`, and those between are blended.
    fields = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    missing = [name for name in fields if rope.get(name) is None]
    if missing:
        raise ValueError(f"rope scaling llama3: {', '.join(missing)} missing in config.json")
    original, low, high = (float(rope[name]) for name in fields)
    divisors = []
    for pair in range(pairs):
        turns = original / (2 * math.pi * theta ** (2 * pair / head_dim))
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / (kept + (1.0 - kept) / factor))
    return tuple(divisors)
